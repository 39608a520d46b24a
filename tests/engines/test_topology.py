"""The matrix of nvidia-smi, from a real H200 pair and as it would print a PCIe node with two NUMA halves."""

from pathlib import Path

import pytest

from runner.engines.topology import parse_topology, read_matrix

FIXTURES = Path(__file__).parent.parent / "fixtures/topology"


def test_two_h200_are_joined_by_nvlink() -> None:
    topology = parse_topology((FIXTURES / "h200_x2.txt").read_text())
    assert topology.gpus == ("GPU0", "GPU1")
    assert topology.links == (("X", "NV18"), ("NV18", "X"))
    assert topology.kind == "nvlink" and topology.numa == (0, 0) and topology.cpus == ("0-31", "0-31")
    assert topology.summary() == "2 GPUs; 1 x NV18 (18 bonded NVLinks); NUMA node 0: GPU0, GPU1"


def test_a_pcie_node_with_two_numa_halves() -> None:
    topology = parse_topology((FIXTURES / "pcie_x8_two_numa.txt").read_text())
    assert topology.kind == "pcie" and not topology.nvlink
    assert topology.numa == (0, 0, 0, 0, 1, 1, 1, 1) and topology.numa_nodes == (0, 1)
    words = topology.pairs()
    assert (words.count("SYS"), words.count("NODE"), words.count("PIX")) == (16, 8, 4)
    assert topology.cpus[7] == "32-63,96-127"


def test_text_without_a_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="no `nvidia-smi topo -m` matrix"):
        parse_topology("NVIDIA-SMI has failed")


def test_a_cut_matrix_is_refused() -> None:
    lines = (FIXTURES / "pcie_x8_two_numa.txt").read_text().splitlines()
    with pytest.raises(ValueError, match="8 GPU columns and 3 GPU rows"):
        parse_topology("\n".join(lines[:4]))


def test_one_gpu_has_no_link() -> None:
    topology = parse_topology("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\tN/A\n")
    assert topology.kind == "none" and topology.numa == (None,)


def test_the_matrix_is_read_without_the_terminals_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi underlines its head also into a file."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && cat {FIXTURES / "h200_x1.txt"}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    text = read_matrix()
    assert text is not None and "\x1b" not in text
    assert (parse_topology(text).gpus, parse_topology(text).numa) == (("GPU0",), (0,))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert read_matrix() is None
