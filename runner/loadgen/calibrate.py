"""The client's ceiling on this machine: driven against a loopback server that stamps every chunk. Used by `action=doctor`."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.processes import worker_environment
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
    import os

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
        load = driver.drive(
            Job(url=url, concurrency=streams, seconds=seconds, rounds=1, input=LengthRecipe(value=64), output=LengthRecipe(value=tokens))
        )
    ttft, tpot, _ = errors_ms(load_times(load), read_log(log))
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


Timed = tuple[int, float, float, list[float]]


def load_times(load: object) -> list[Timed]:
    """(sent ns, TTFT ms, TPOT ms, gaps ms) of each request as this client reports them, in order of sending."""
    from runner.loadgen.driver import Load

    assert isinstance(load, Load)
    found = []
    for row in load.rows:
        if len(row.times) > 1:
            gaps = [(b - a) / NS_PER_MS for a, b in zip(row.times, row.times[1:], strict=False)]
            per_token = (row.times[-1] - row.times[0]) / NS_PER_MS / (row.tokens[-1] - row.tokens[0])
            found.append((row.sent, (row.times[0] - row.sent) / NS_PER_MS, per_token, gaps))
    return found


def read_log(path: Path) -> list[tuple[int, list[int]]]:
    """(received, stamps) in ns of each request, in order of arrival."""
    import json

    lines = sorted((json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()), key=lambda line: line["n"])
    return [(line["received"], line["stamps"]) for line in lines]


def errors_ms(reported: Sequence[Timed], truth: Sequence[tuple[int, list[int]]]) -> tuple[list[float], list[float], list[float]]:
    """Absolute errors of TTFT, TPOT and gaps (ms) against the server's stamps. Requests are matched by order of sending: a
    request that was sent earlier was received earlier, up to near-ties that have equal answers."""
    ttft, tpot, gaps = [], [], []
    for (_, first, per_token, between), (received, stamps) in zip(reported, truth, strict=False):
        ttft.append(abs(first - (stamps[0] - received) / NS_PER_MS))
        if len(stamps) > 1:
            tpot.append(abs(per_token - (stamps[-1] - stamps[0]) / NS_PER_MS / (len(stamps) - 1)))
            gaps += [abs(gap - (b - a) / NS_PER_MS) for gap, a, b in zip(between, stamps, stamps[1:], strict=False)]
    return ttft, tpot, gaps
