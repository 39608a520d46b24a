"""`make load`: 200 arms x 6 launches through one study loop on nodes without servers. SIMULATED records; nothing is launched.

Prints the driver's memory, the journal's append times, the cost of deciding what comes next, of a resume, and of the MLflow view.
`python -m tests.bench.load_held [arms=200] [blocks=6] [track=true]`"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.execution.job import NodeOrder
from runner.execution.loop import Recipe, StudyLoop
from runner.execution.scheduler import Scheduler
from runner.execution.study import OpenStudy, open_study
from runner.records.journal import Journal
from runner.records.paths import RootPaths
from runner.records.plan import Arm, Cell, Hypothesis, Plan
from runner.spec.protocol import Protocol
from tests.execution.example import small_plan
from tests.execution.fakes import FakeExecutor, FakeNode, Silent
from tests.execution.launching import MODEL, NODE, WORKLOAD, engine

RESOLVED = {f"argument_{number:03d}": f"value {number} of a resolved configuration" for number in range(300)}
"""As many settings as /server_info of a real engine has: what a record mostly consists of."""
OUTPUT = Path(__file__).parent / "output" / "load_held.md"


def big_plan(count: int) -> Plan:
    """`count` arms, the baseline among them."""
    names = ("baseline", *(f"arm-{number:03d}" for number in range(1, count)))
    arms = tuple(Arm(name=name, levels={"speed": name}, configuration_hash=name) for name in names)
    return small_plan(
        arms=arms,
        cells=tuple(Cell(levels=arm.levels, status="ARM", arm=arm.name) for arm in arms),
        hypotheses=tuple(Hypothesis(arm=name, phase="decode_c1", metric="tpot_p50_ms") for name in names[1:]),
        blocks=(names, names[::-1]),
        raw_cells=count,
    )


def resident_mb() -> float:
    """Resident memory of this process now, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Timed:
    """Wraps a function and keeps how long each call took, s."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, list[float]()

    def __call__(self, *args: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*args, **more)
        finally:
            self.seconds.append(time.perf_counter() - began)

    def quantile(self, share: float) -> float:
        values = sorted(self.seconds)
        return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def opened(root: Path, plan: Plan, protocol: Protocol) -> tuple[OpenStudy, Scheduler]:
    study = open_study(RootPaths(root), plan, name="load", new=False, config={})
    scheduler = Scheduler(study.plan, protocol, None, [])
    scheduler.restore(*study.history())
    return study, scheduler


def drive(root: Path, plan: Plan, protocol: Protocol) -> dict[str, float]:
    """One driver's life; figures in s, ms and MB."""
    study, scheduler = opened(root, plan, protocol)
    append, take = Timed(study.journal.append), Timed(scheduler.take)
    scheduler.take = take  # type: ignore[method-assign]
    memory: list[float] = []

    class Watching(Silent):
        def launch_done(self, record: Any) -> None:
            nodes[0].jobs.clear()
            if len(scheduler.launches) % 50 == 0:
                memory.append(resident_mb())

    class Appending:
        torn = None

        def append(self, kind: str, **fields: Any) -> Any:
            return append(kind, **fields)

        def close(self) -> None:
            study.journal.close()

    watched = OpenStudy(**{**vars(study), "journal": Appending()})
    recipe = Recipe(engine=engine(), model=MODEL, node=NODE, workload=WORKLOAD, protocol=protocol, factors={})
    nodes = [FakeNode("a", lambda job, number: {"resolved": RESOLVED})]
    loop = StudyLoop(watched, recipe, scheduler, FakeExecutor(nodes), NodeOrder(study="load", engine=engine(), node=NODE), Watching())
    began = time.perf_counter()
    try:
        loop.run(list(nodes))
        study.journal.append("study_finished", reason=scheduler.reason, gpu_minutes=0.0)
    finally:
        study.close()
    return {
        "launches": float(len(scheduler.launches)),
        "loop_s": time.perf_counter() - began,
        "append_p50_ms": 1e3 * append.quantile(0.5),
        "append_p99_ms": 1e3 * append.quantile(0.99),
        "take_p50_ms": 1e3 * take.quantile(0.5),
        "take_max_s": take.quantile(1.0),
        "take_total_s": sum(take.seconds),
        "memory_first_mb": memory[0] if memory else resident_mb(),
        "memory_after_the_first_looks_mb": memory[len(memory) // 3] if memory else resident_mb(),
        "memory_last_mb": memory[-1] if memory else resident_mb(),
    }


def resume_seconds(root: Path, plan: Plan, protocol: Protocol) -> float:
    """From nothing to the next launch's slot."""
    began = time.perf_counter()
    study, scheduler = opened(root, plan, protocol)
    try:
        scheduler.take("a")
        return time.perf_counter() - began
    finally:
        study.close()


def track_seconds(root: Path) -> float:
    """Rebuilds the MLflow view of the study in a store of its own. Raises whatever the tracker raises."""
    from runner.spec.study import TrackingSpec
    from runner.tracking.mlflow_tracker import track_study

    paths = RootPaths(root)
    began = time.perf_counter()
    track_study(paths, paths.study("load"), TrackingSpec(root=str(root)))
    return time.perf_counter() - began


def disk_ms(folder: Path) -> tuple[float, float]:
    """What the disk alone takes for a line of a launch, with nothing of ours: median and 99th percentile of write and fdatasync, ms."""
    line = (json.dumps(RESOLVED) + "\n").encode()
    with open(folder / "bare", "ab", buffering=0) as file:

        def write() -> None:
            file.write(line)
            os.fdatasync(file.fileno())

        timed = Timed(write)
        for _ in range(1200):
            timed()
    return 1e3 * timed.quantile(0.5), 1e3 * timed.quantile(0.99)


def main() -> int:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    arms, blocks = int(given.get("arms", "200")), int(given.get("blocks", "6"))
    plan = big_plan(arms)
    protocol = Protocol(min_blocks=blocks, max_blocks=blocks, confirm=False, prime=False)
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        root = Path(folder)
        figures = drive(root, plan, protocol)
        cpu = time.process_time()
        figures["resume_s"] = resume_seconds(root, plan, protocol)
        figures["resume_cpu_s"] = time.process_time() - cpu
        journal = RootPaths(root).study("load").journal
        figures["journal_mb"] = journal.stat().st_size / 1e6
        began = time.perf_counter()
        Journal(journal).close()
        figures["journal_open_s"] = time.perf_counter() - began
        if given.get("track", "true") == "true":
            cpu = time.process_time()
            figures["track_s"] = track_seconds(root)
            figures["track_cpu_s"] = time.process_time() - cpu
        figures["bare_disk_p50_ms"], figures["bare_disk_p99_ms"] = disk_ms(root)
    load = os.getloadavg()[0]
    lines = [
        f"SIMULATED records, {arms} arms, {blocks} blocks, one node without a server, machine load {load:.1f}.",
        "",
        "| figure | value |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value:.3f} |" for name, value in figures.items()]
    text = "\n".join(lines) + "\n"
    print(text)
    if not {"arms", "blocks"} & given.keys():
        OUTPUT.parent.mkdir(exist_ok=True)
        OUTPUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
