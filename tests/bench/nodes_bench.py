"""`make bench-nodes`: N blocks on N nodes beside one block on one node, on a local Ray cluster of several raylets. SIMULATED engine.

Launches consist of simulated load time, so that the cores of this machine are not the limit. A raylet with its actor takes about 0.5 GB.
`python -m tests.bench.nodes_bench [nodes=8] [load_s=60]`; the table is also written to output/nodes.md."""

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.execution.clusters import cluster_of, entries, nodes_of_blocks, run_study

OUTPUT = Path(__file__).parent / "output" / "nodes.md"
LIMIT = 1.3


@dataclass(frozen=True)
class Run:
    """One study. `open_s`: until the first launch; `blocks_s`: from there to the last launch's end."""

    nodes: int
    launches: int
    blocks: int
    whole_blocks: bool
    open_s: float
    blocks_s: float


def measure(root: Path, address: str, nodes: int, load_s: float) -> Run:
    """A study of as many blocks as nodes."""
    began = time.time()
    run_study(root, address, blocks=nodes, load_s=load_s, nodes=nodes)
    lines = entries(root)
    first = next(entry["t"] for entry in lines if entry["kind"] == "launch_started")
    last = max(entry["t"] for entry in lines if entry["kind"] == "launch_finished")
    finished = [entry for entry in lines if entry["kind"] == "launch_finished" and entry["launch"]["outcome"] == "ok"]
    used = nodes_of_blocks(root)
    return Run(nodes, len(finished), len(used), all(len(names) == 1 for names in used.values()), first - began, last - first)


def main() -> int:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    nodes, load_s = int(given.get("nodes", "8")), float(given.get("load_s", "60"))
    with tempfile.TemporaryDirectory(prefix="nodes-") as name, cluster_of(nodes) as cluster:
        runs = [measure(Path(name) / str(count), cluster.address, count, load_s) for count in (1, nodes)]
    one, many = runs
    ratio = many.blocks_s / one.blocks_s
    with_open = (many.open_s + many.blocks_s) / (one.open_s + one.blocks_s)
    lines = [
        f"SIMULATED engine, {load_s:g} s of load time a launch, {os.cpu_count()} cores, machine load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| nodes | blocks | launches | each block on one node | nodes open, s | blocks, s |",
        "|---|---|---|---|---|---|",
        *(
            f"| {run.nodes} | {run.blocks} | {run.launches} | {'yes' if run.whole_blocks else 'NO'} | {run.open_s:.1f} | {run.blocks_s:.1f} |"
            for run in runs
        ),
        "",
        f"{many.blocks} blocks on {many.nodes} nodes took {ratio:.2f} times as long as one block on one node (goal: under {LIMIT}); "
        f"with the opening of the nodes {with_open:.2f} times.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(text)
    return 0 if ratio < LIMIT and many.whole_blocks and many.launches >= 3 * many.blocks else 1


if __name__ == "__main__":
    sys.exit(main())
