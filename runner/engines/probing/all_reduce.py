"""All-reduce latency of this node: N processes of the engine's interpreter, their medians, the fitted lines."""

import json
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from runner.analysis.communication import algorithm_us, fit_link
from runner.engines.base import OwnedProcess, Owner
from runner.engines.identity import check_interpreter
from runner.engines.probing.stored import Algorithm, NodeProbe, Point
from runner.errors import RunnerError, UserError
from runner.spec.base import Strict
from runner.spec.node import LinkCost

SCRIPT = Path(__file__).with_name("all_reduce_script.py")
SIZES = tuple(4096 << step for step in range(15))
"""4 KB to 64 MB."""
NO_MULTICAST: Mapping[str, str] = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}


class ProbeOrder(Strict):
    """What is measured. `rounds` medians a size; a size takes about `budget_s` seconds a way; the whole at most `timeout_s`."""

    backend: Literal["nccl", "gloo"]
    ranks: int
    sizes: tuple[int, ...] = SIZES
    rounds: int = 9
    budget_s: float = 0.5
    calls: int = 200
    graph_calls: int = 156
    timeout_s: float = 300.0


class ProbeFailed(RunnerError):
    """The measurement broke: the message has the last words of the process that broke first."""


def measure_all_reduce(
    order: ProbeOrder, python: str, owner: Owner, env: Mapping[str, str], node: str, engine: str | None = None
) -> NodeProbe:
    """Runs the processes and waits. `env` is their whole environment, multicast off is added. Raises UserError for an interpreter
    without torch, ProbeFailed otherwise."""
    path = check_interpreter(python)
    environment = {**env, **NO_MULTICAST}
    with TemporaryDirectory(prefix="all-reduce-") as name:
        folder = Path(name)
        told = {**order.model_dump(mode="json"), "store": str(folder / "store"), "out": str(folder)}
        (folder / "order.json").write_text(json.dumps(told), encoding="utf-8")
        logs = [folder / f"{rank}.log" for rank in range(order.ranks)]
        running: list[OwnedProcess] = []
        try:
            for rank, log in enumerate(logs):
                running.append(owner.spawn([path, str(SCRIPT), str(folder / "order.json"), str(rank)], environment, log))
            _wait(running, logs, order.timeout_s, python)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                process.wait_gone(10.0)
        answers = [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(order.ranks)]
    return assemble(order, answers, path, node, engine, {name: environment[name] for name in (*NO_MULTICAST, *_nccl(environment))})


def _nccl(environment: Mapping[str, str]) -> list[str]:
    return sorted(name for name in environment if name.startswith("NCCL_") and name not in NO_MULTICAST)


def _wait(running: Sequence[OwnedProcess], logs: Sequence[Path], timeout_s: float, python: str) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in running]
        broken = next((rank for rank, code in enumerate(codes) if code not in (None, 0)), None)
        if broken is not None:
            words = logs[broken].read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = words[-1][:300] if words else "no output"
            if "No module named 'torch'" in last:
                raise UserError(f"engine.python={python} has no torch; name the interpreter of the engine's environment")
            raise ProbeFailed(f"rank {broken} of {len(running)} ended with {codes[broken]}: {last}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            waiting = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
            raise ProbeFailed(f"the all-reduces did not end within {timeout_s:g} s (ranks {waiting} were still at work)")
        time.sleep(0.05)


def assemble(
    order: ProbeOrder, answers: Sequence[Mapping[str, Any]], python: str, node: str, engine: str | None, env: Mapping[str, str]
) -> NodeProbe:
    """One probe from all ranks' answers: of every round the slowest rank's time, of every way its line."""
    first = answers[0]
    algorithms = {}
    for name, words in first["algorithms"].items():
        if not all(name in answer["algorithms"] for answer in answers):
            continue
        points = []
        for size in words["points"]:
            rounds = zip(*(answer["algorithms"][name]["points"][size] for answer in answers), strict=True)
            points.append(Point(bytes=int(size), us=tuple(round(max(times), 3) for times in rounds)))
        algorithms[name] = fitted(tuple(points), order.ranks, int(words["calls"]), f"measured here, {first['device']}")
    if not algorithms:
        raise ProbeFailed(f"no way of doing an all-reduce could be measured: {json.dumps(first['notes'])}")
    return NodeProbe(
        node=node,
        host=socket.gethostname(),
        at=time.time(),
        backend=order.backend,
        ranks=order.ranks,
        python=python,
        torch=str(first["torch"]),
        engine=engine,
        library=first["library"],
        devices=tuple(str(answer["device"]) for answer in answers),
        env=dict(env),
        algorithms=algorithms,
        notes={str(name): str(why) for name, why in first["notes"].items()},
    )


def fitted(points: tuple[Point, ...], ranks: int, calls: int, source: str) -> Algorithm:
    """alpha and bandwidth from the medians, and what the line leaves over at each size, percent."""
    sizes = [point.bytes for point in points]
    medians = [statistics.median(point.us) for point in points]
    line = fit_link(sizes, medians, ranks, source)
    line = LinkCost(alpha_us=round(line.alpha_us, 4), gb_s=round(line.gb_s, 4), source=source)
    left = [100 * (us - algorithm_us(line, size, ranks)) / us for size, us in zip(sizes, medians, strict=True)]
    return Algorithm(points=points, fit=line, residual_pct=tuple(round(value, 2) for value in left), calls=calls)


def probe_text(probe: NodeProbe) -> str:
    """A table for people: medians by size, then the lines."""
    names = list(probe.algorithms)
    lines = [
        f"All-reduce on node {probe.node} ({probe.host}): {probe.ranks} ranks, {', '.join(sorted(set(probe.devices)))}, "
        f"torch {probe.torch}" + (f", NCCL {probe.library}" if probe.library else ""),
        "",
        f"{'bytes':>11}  " + "  ".join(f"{name + ' us':>16}" for name in names),
    ]
    sizes = sorted({point.bytes for algorithm in probe.algorithms.values() for point in algorithm.points})
    for size in sizes:
        cells = []
        for algorithm in probe.algorithms.values():
            point = next((point for point in algorithm.points if point.bytes == size), None)
            cells.append(f"{statistics.median(point.us):>16.2f}" if point is not None else f"{'-':>16}")
        lines.append(f"{size:>11,}  " + "  ".join(cells))
    lines.append("")
    for name, algorithm in probe.algorithms.items():
        worst = max((abs(value) for value in algorithm.residual_pct), default=0.0)
        lines.append(
            f"{name}: {algorithm.fit.alpha_us:.2f} us + bytes at {algorithm.fit.gb_s:.2f} GB/s (ring); largest residual {worst:.0f} %"
        )
    lines += [f"{name}: not measured: {why}" for name, why in probe.notes.items()]
    return "\n".join(lines)
