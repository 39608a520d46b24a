"""The client's ceiling on this machine: driven against a loopback server that stamps every chunk. Used by `action=doctor`."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.processes import worker_environment
from runner.loadgen.prompts import prompts_of
from runner.loadgen.rows import Row
from runner.spec.base import Strict

NS_PER_MS = 1e6


class Level(Strict):
    """One calibration level: errors of this client against the server's stamps, ms; CPU seconds a million chunks."""

    streams: int
    token_ms: float
    chunks: int
    chunks_per_s: float
    ttft_error_p50_ms: float
    ttft_error_p99_ms: float
    tpot_error_p99_ms: float
    dispatch_lag_p99_ms: float
    loop_stall_max_ms: float
    cpu_share: float
    cpu_s_per_million: float


class Calibration(Strict):
    """What the client can do here. `ceiling_chunks_s`: chunks a second one worker reads when the server sends as fast as it can."""

    levels: tuple[Level, ...]
    ceiling_chunks_s: float
    fit: bool
    note: str = ""


@contextlib.contextmanager
def echo_server(token_ms: float, first_ms: float = 20.0, log: Path | None = None) -> Iterator[str]:
    """The URL of a loopback server of its own process; it ends with this process in any case. Raises OSError."""
    argv = [sys.executable, "-m", "runner.loadgen.echo", "--token-ms", str(token_ms), "--first-ms", str(first_ms)]
    argv += ["--log", str(log)] if log else []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=worker_environment(os.environ)) as process:
        assert process.stdin and process.stdout
        try:
            line = process.stdout.readline().strip()
            if not line:
                raise OSError("the loopback server did not start")
            yield f"http://127.0.0.1:{int(line)}"
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def calibrate(streams: Sequence[int] = (16, 64, 256), tokens: int = 64, token_ms: float = 10.0, seconds: float = 1.5) -> Calibration:
    """Some seconds a level, closed loop. Raises ClientBroken or OSError."""
    from runner.loadgen.driver import ProcessDriver

    levels = []
    with ProcessDriver() as driver, TemporaryDirectory() as folder:
        for count in streams:
            levels.append(measure(driver, count, token_ms, tokens, seconds, Path(folder) / f"{count}.log"))
        ceiling = measure(driver, max(streams), 0.0, tokens, seconds, Path(folder) / "ceiling.log")
    worst = max(level.ttft_error_p50_ms for level in levels)
    fit = worst <= 5.0 and all(level.loop_stall_max_ms <= 100 for level in levels)
    note = "" if fit else f"the client reads first tokens up to {worst:.1f} ms late: too few free cores, or the machine is busy"
    return Calibration(levels=tuple(levels), ceiling_chunks_s=ceiling.chunks_per_s, fit=fit, note=note)


def measure(driver: object, streams: int, token_ms: float, tokens: int, seconds: float, log: Path) -> Level:
    """One level: drives, then compares with the server's log."""
    from runner.loadgen.driver import ProcessDriver
    from runner.loadgen.measures import percentile

    assert isinstance(driver, ProcessDriver)
    with echo_server(token_ms, log=log) as url:
        job = Job(url=url, concurrency=streams, seconds=seconds, rounds=1, input=LengthRecipe(value=64), output=LengthRecipe(value=tokens))
        load = driver.drive(job)
    ttft, tpot, _ = errors_ms(reported_by(load.rows, job), {answer.key: answer for answer in read_log(log)})
    report = load.reports[0]
    chunks = sum(len(row.times) for row in load.rows)
    return Level(
        streams=streams,
        token_ms=token_ms,
        chunks=chunks,
        chunks_per_s=chunks / report["wall_s"],
        ttft_error_p50_ms=percentile(ttft, 50),
        ttft_error_p99_ms=percentile(ttft, 99),
        tpot_error_p99_ms=percentile(tpot, 99),
        dispatch_lag_p99_ms=percentile([lag / NS_PER_MS for lag in report["lags_ns"]], 99),
        loop_stall_max_ms=report["stall_max_ns"] / NS_PER_MS,
        cpu_share=report["cpu_share"],
        cpu_s_per_million=(report["cpu_s"] + report["parse_cpu_s"]) / max(1, chunks) * 1e6,
    )


@dataclass(frozen=True)
class Reported:
    """One request as a client reports it, ms: TTFT, TPOT and the gaps between chunks."""

    ttft: float
    tpot: float
    gaps: Sequence[float]


@dataclass(frozen=True)
class Stamped:
    """One request as the server saw it, monotonic ns."""

    number: int
    key: str
    received: int
    stamps: Sequence[int]


def reported_by(rows: Sequence[Row], job: Job) -> dict[str, Reported]:
    """This client's own report of each request, by the first three ids of its prompt (no two are alike)."""
    prompts = prompts_of(job)
    found = {}
    for row in rows:
        if len(row.times) > 1:
            gaps = [(b - a) / NS_PER_MS for a, b in pairwise(row.times)]
            per_token = (row.times[-1] - row.times[0]) / NS_PER_MS / (row.tokens[-1] - row.tokens[0])
            found[",".join(map(str, prompts(row.index).ids[:3]))] = Reported((row.times[0] - row.sent) / NS_PER_MS, per_token, gaps)
    return found


def read_log(path: Path) -> list[Stamped]:
    """The loopback server's log in order of arrival."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted((Stamped(line["n"], line["key"], line["received"], line["stamps"]) for line in lines), key=lambda item: item.number)


def errors_ms(reported: Mapping[str, Reported], truth: Mapping[str, Stamped]) -> tuple[list[float], list[float], list[float]]:
    """Absolute errors of TTFT, TPOT and gaps (ms) against the server's stamps; requests are matched by their key."""
    ttft, tpot, gaps = [], [], []
    for key, request in reported.items():
        answer = truth.get(key)
        if answer is None or len(answer.stamps) < 2:
            continue
        stamps = answer.stamps
        ttft.append(abs(request.ttft - (stamps[0] - answer.received) / NS_PER_MS))
        tpot.append(abs(request.tpot - (stamps[-1] - stamps[0]) / NS_PER_MS / (len(stamps) - 1)))
        gaps += [abs(gap - (b - a) / NS_PER_MS) for gap, (a, b) in zip(request.gaps, pairwise(stamps), strict=False)]
    return ttft, tpot, gaps
