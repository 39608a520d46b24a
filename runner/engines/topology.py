"""`nvidia-smi topo -m` as data: which link joins each pair of GPUs, and which NUMA node each GPU is on."""

import re
import subprocess
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;]*m")
MEANING = {
    "X": "itself",
    "SYS": "PCIe and the interconnect between NUMA nodes",
    "NODE": "PCIe and the interconnect between host bridges of one NUMA node",
    "PHB": "PCIe through a host bridge",
    "PXB": "several PCIe bridges",
    "PIX": "one PCIe bridge",
}


def said(*argv: str) -> str | None:
    """What a command prints, without terminal codes; None where it is absent, fails or takes longer than 20 s."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return ANSI.sub("", done.stdout) if done.returncode == 0 else None


def read_matrix() -> str | None:
    return said("nvidia-smi", "topo", "-m")


@dataclass(frozen=True)
class Topology:
    """`links[i][j]`: link word between GPU i and j (`NV18`, `PIX`, `SYS` ...). `numa[i]`, `cpus[i]`: of GPU i, null where unsaid."""

    gpus: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...]
    cpus: tuple[str | None, ...]

    @property
    def nvlink(self) -> bool:
        """True when every pair is joined by NVLink."""
        pairs = self.pairs()
        return bool(pairs) and all(word.startswith("NV") for word in pairs)

    @property
    def kind(self) -> str:
        """`nvlink`, `pcie` or `none` (one GPU)."""
        return "none" if len(self.gpus) < 2 else "nvlink" if self.nvlink else "pcie"

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        return tuple(sorted({node for node in self.numa if node is not None}))

    def pairs(self) -> list[str]:
        return [self.links[i][j] for i in range(len(self.gpus)) for j in range(i + 1, len(self.gpus))]

    def summary(self) -> str:
        """One line: how many pairs have which link, and the NUMA split."""
        words = self.pairs()
        counted = ", ".join(f"{words.count(word)} x {word} ({meaning(word)})" for word in sorted(set(words)))
        split = "; ".join(
            f"NUMA node {node}: {', '.join(gpu for gpu, at in zip(self.gpus, self.numa, strict=True) if at == node)}"
            for node in self.numa_nodes
        )
        return f"{len(self.gpus)} GPUs" + (f"; {counted}" if counted else "") + (f"; {split}" if split else "")


def meaning(word: str) -> str:
    match = re.fullmatch(r"NV(\d+)", word)
    return f"{match[1]} bonded NVLinks" if match else MEANING.get(word, "unknown link")


def parse_topology(text: str) -> Topology:
    """Reads the matrix. Raises ValueError when the text holds none. Columns are tab-separated; NICs are left out."""
    lines = [ANSI.sub("", line) for line in text.splitlines()]
    header = next((line for line in lines if re.search(r"\bGPU0\b", line) and not line.startswith("GPU")), None)
    if header is None:
        raise ValueError("no `nvidia-smi topo -m` matrix in the text")
    columns = [column.strip() for column in header.split("\t")]
    gpu_columns = [index for index, column in enumerate(columns) if re.fullmatch(r"GPU\d+", column)]
    numa_column = next((i for i, column in enumerate(columns) if column.startswith("NUMA Affinity")), None)
    cpu_column = next((i for i, column in enumerate(columns) if column.startswith("CPU Affinity")), None)
    names, links, numa, cpus = [], [], [], []
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not re.fullmatch(r"GPU\d+", cells[0]):
            continue
        names.append(cells[0])
        links.append(tuple(cells[index] for index in gpu_columns))
        node = cells[numa_column] if numa_column is not None and numa_column < len(cells) else ""
        numa.append(int(node) if node.isdigit() else None)
        cpus.append(cells[cpu_column] or None if cpu_column is not None and cpu_column < len(cells) else None)
    if len(names) != len(gpu_columns):
        raise ValueError(f"the matrix has {len(gpu_columns)} GPU columns and {len(names)} GPU rows; is the text cut?")
    return Topology(tuple(names), tuple(links), tuple(numa), tuple(cpus))
