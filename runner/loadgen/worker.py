"""The load worker: `python -m runner.loadgen.worker`. JSON lines in, JSON lines out; ends when its input ends.

    {"do": "ping"}                  -> {"ok": true, "pid": ..., "versions": {...}}
    {"do": "drive", "job": {...}}   -> {"ok": true, "rows": PATH, ...} after the load, or {"ok": false, "error": ...}
    {"do": "stop"}                  -> ends

`--connect PATH` speaks over a Unix socket instead of stdin and stdout (for processes that a guard starts). It stays alive
across phases, and imports nothing heavy: no pydantic, no numpy."""

import asyncio
import contextlib
import gc
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, process_time
from typing import Any

import uvloop

from runner.loadgen import steadiness
from runner.loadgen.arrivals import count_for, gamma_schedule, trace_schedule
from runner.loadgen.bodies import request
from runner.loadgen.client import NS, Drive, Target
from runner.loadgen.client import Outcome as Driven
from runner.loadgen.job import Job
from runner.loadgen.prompts import prompts_of
from runner.loadgen.protocol import Exchange
from runner.loadgen.rows import Row, write_rows
from runner.loadgen.streams import outcome, read_stream


def schedule_of(job: Job) -> list[float] | None:
    """Arrival times of this worker's share, seconds from the common start; None for a closed loop."""
    if job.arrival == "closed":
        return None
    if job.arrival == "trace":
        from runner.loadgen.datasets import trace_stamps

        times = trace_schedule(trace_stamps(job))
        times = [time for time in times if time < job.seconds] if not job.requests else times[: job.requests]
    else:
        count = job.requests or count_for(job.rate, job.seconds)
        times = gamma_schedule(job.rate, job.burstiness if job.arrival == "gamma" else 1.0, count, job.seed)
    return times[job.index_start :: job.index_step]


class Loop:
    """When a closed loop stops sending; for a warm-up also the steadiness test, fed with each finished exchange."""

    def __init__(self, job: Job, asked: Callable[[int], int]) -> None:
        self._job, self._asked = job, asked
        self._finished: list[steadiness.Finished] = []
        self._tested = 0
        self._longest = 0.0
        self.start = 0.0
        self.passed = False

    def more(self, started: int, elapsed: float) -> bool:
        job = self._job
        if started < job.concurrency:
            return True
        if job.until == "requests":
            return started < job.requests
        if job.until == "steady":
            return elapsed < job.seconds and not self.passed
        if elapsed < job.seconds:
            return True
        few = started < job.rounds * job.concurrency
        return few and elapsed + self._longest <= 2 * job.seconds

    def ended(self, exchange: Exchange) -> None:
        if exchange.error or exchange.status != 200:
            return
        self._longest = max(self._longest, (exchange.ended - exchange.sent) / NS)
        if self._job.until != "steady":
            return
        # Parsing inside the loop is fine here: nothing of a warm-up is measured but its own steadiness.
        stream = read_stream(exchange, self._job.route)
        if not stream.times:
            return
        self.start = self.start or exchange.sent / NS
        self._finished.append(steadiness.Finished(stream.times[0] / NS, stream.times[-1] / NS, stream.total, stream.tokens[0]))
        if len(self._finished) >= self._tested + self._job.concurrency:
            self._tested = len(self._finished)
            self.passed = steadiness.warm(self.windows())

    def windows(self) -> list[steadiness.Window]:
        return steadiness.rounds(self._finished, self._job.concurrency, self.start)


async def drive(job: Job, number: int = 0) -> dict[str, Any]:
    """Drives one job; returns the answer. Raises OSError or ValueError for a URL, dataset or result file that is no good."""
    target = Target.of(job.url)
    prompts = prompts_of(job)
    asked: dict[int, tuple[int, int, int]] = {}

    def make(local: int) -> bytes:
        prompt = prompts(job.index_start + local * job.index_step)
        asked[local] = (prompt.input, prompt.output, prompt.group)
        return request(prompt, job.route, job.model, target.host, target.prefix)

    schedule = schedule_of(job)
    loop = Loop(job, lambda index: asked[index][1])
    driver = Drive(
        target,
        make,
        job.concurrency,
        schedule=schedule,
        more=loop.more if schedule is None else None,
        on_end=loop.ended if schedule is None else None,
        connect_timeout_s=job.connect_timeout_s,
        request_timeout_s=job.request_timeout_s,
        stall_timeout_s=job.stall_timeout_s,
    )
    gc.collect()
    # Nothing below makes cycles; the collector would look again and again at lists of numbers that only grow.
    gc.disable()
    try:
        driven = await driver.run(job.start_at_ns)
        parse_from, parse_cpu = monotonic_ns(), process_time()
        rows = [_row(exchange, job, asked[exchange.index], number) for exchange in driven.exchanges]
        answer = _answer(driven, schedule)
        if job.until == "steady" and schedule is None:
            answer["warm"] = {"passed": loop.passed, "windows": [[w.tpot, w.throughput] for w in loop.windows()]}
        if job.result:
            write_rows(Path(job.result), rows)
        return {**answer, "rows": job.result, "parse_s": (monotonic_ns() - parse_from) / NS, "parse_cpu_s": process_time() - parse_cpu}
    finally:
        gc.enable()


def _row(exchange: Exchange, job: Job, asked: tuple[int, int, int], number: int) -> Row:
    stream = read_stream(exchange, job.route)
    exchange.bodies.clear()
    return Row(
        index=job.index_start + exchange.index * job.index_step,
        worker=number,
        scheduled=exchange.scheduled,
        due=exchange.due,
        sent=exchange.sent,
        ended=exchange.ended,
        status=exchange.status,
        outcome=outcome(stream, asked[1]),
        error=stream.error,
        finish_reason=stream.finish_reason,
        asked_input=asked[0],
        asked_output=asked[1],
        prompt_tokens=-1 if stream.prompt_tokens is None else stream.prompt_tokens,
        cached_tokens=-1 if stream.cached_tokens is None else stream.cached_tokens,
        retractions=stream.retractions,
        counted=stream.counted,
        retried=bool(exchange.retried),
        group=asked[2],
        times=stream.times,
        tokens=stream.tokens,
    )


def _answer(driven: Driven, schedule: list[float] | None) -> dict[str, Any]:
    sent = [exchange.sent for exchange in driven.exchanges if exchange.sent]
    return {
        "ok": True,
        "asked_at": driven.asked_at,
        "first_sent": min(sent, default=0),
        "stopped_sending": driven.stopped_sending,
        "lags_ns": driven.lags_ns,
        "stall_max_ns": driven.stall_max_ns,
        "cpu_share": driven.cpu_s / driven.wall_s if driven.wall_s else 0.0,
        "cpu_s": driven.cpu_s,
        "wall_s": driven.wall_s,
        "gave_up": driven.gave_up,
        "scheduled_span_s": schedule[-1] - schedule[0] if schedule else None,
    }


async def serve(reader: asyncio.StreamReader, write: Callable[[bytes], None], number: int) -> None:
    """Answers commands until the input ends. A command that fails is answered, not raised."""
    commands: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def listen() -> None:
        while line := await reader.readline():
            commands.put_nowait(json.loads(line))
        # The other side is gone: so is the reason to load a server.
        os._exit(0)

    listening = asyncio.ensure_future(listen())
    while (command := await commands.get()) is not None:
        if command["do"] == "stop":
            listening.cancel()
            return
        try:
            if command["do"] == "drive":
                answer = await drive(Job.from_json(command["job"]), number)
            else:
                answer = {"ok": True, "pid": os.getpid(), "at": monotonic_ns()}
        except Exception as error:  # noqa: BLE001 - the driver is told, whatever it was
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        write(json.dumps(answer).encode() + b"\n")


def raise_file_limit() -> None:
    """As many open files as this process may have: the usual soft limit of 1024 is fewer than its streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _main(arguments: list[str]) -> None:
    raise_file_limit()
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    number = int(options.get("--number", "0"))
    if "--connect" in options:
        reader, writer = await asyncio.open_unix_connection(options["--connect"], limit=1 << 24)
        await serve(reader, writer.write, number)
        await writer.drain()
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    await serve(reader, write, number)


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1:]))
