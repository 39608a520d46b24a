"""ProcessDriver: one phase from warm-up to record. The load itself runs in worker processes; here it is ordered and judged."""

import math
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.loadgen.base import ClientBroken, GuardOrder, PhaseOrder
from runner.loadgen.control import flush
from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.processes import Spawn, Worker
from runner.loadgen.rows import Row, read_rows
from runner.records.schema import Fingerprint, PhaseRecord

if TYPE_CHECKING:
    from runner.loadgen.profile import Profile

STREAMS_PER_WORKER = 1000
NS = 1_000_000_000


@dataclass(frozen=True)
class Load:
    """One driven load: its requests by time of sending, and each worker's own report."""

    rows: list[Row]
    reports: list[dict[str, Any]]

    @property
    def gave_up(self) -> str:
        return next((report["gave_up"] for report in self.reports if report["gave_up"]), "")

    @property
    def stopped_sending(self) -> int:
        return max((report["stopped_sending"] for report in self.reports), default=0)

    @property
    def first_sent(self) -> int:
        return min((report["first_sent"] for report in self.reports if report["first_sent"]), default=0)

    def failure_text(self) -> str:
        """How many requests failed and the commonest reason, for a person."""
        bad = [row for row in self.rows if row.outcome == "failed" or row.outcome == "truncated"]
        reasons: dict[str, int] = {}
        for row in bad:
            why = row.error or "ended without [DONE]"
            reasons[why] = reasons.get(why, 0) + 1
        most = max(reasons, key=lambda why: reasons[why]) if reasons else ""
        return f"{len(bad)} of {len(self.rows)} requests failed" + (f" ({most})" if most else "")


class ProcessDriver:
    """The LoadDriver of production. `spawn` (as engines.base.Owner.spawn) starts the workers; null: plain children that end
    when this process does. The first worker starts at once, so that a phase does not wait for it."""

    def __init__(self, spawn: Spawn | None = None) -> None:
        self._spawn = spawn
        self._workers: list[Worker] = [Worker(0, spawn)]
        self._scratch = tempfile.TemporaryDirectory(prefix="loadgen-")
        self._calls = 0
        threading.Thread(target=_preload, daemon=True, name="loadgen-preload").start()

    def fingerprint(self, order: GuardOrder) -> Fingerprint:
        """The output guard's prompts; see guard.py. Never raises for a server that is gone."""
        from runner.loadgen.guard import take_fingerprint

        return take_fingerprint(order)

    def run(self, order: PhaseOrder) -> PhaseRecord:
        """See LoadDriver. Raises ClientBroken when a worker died; the next call starts fresh ones."""
        from runner.loadgen.judging import judge, refused
        from runner.loadgen.telemetry import Watch

        asked = time.monotonic_ns()
        started_at = time.time()
        warmup: Load | None = None
        budget = order.phase.warmup_seconds * order.scale
        if order.warmup and budget > 0:
            warmup = self.drive(warmup_job(order, budget))
            if warmup.gave_up:
                return refused(order, started_at, f"the server stopped serving during the warm-up: {warmup.failure_text()}")
        warmup_s = (time.monotonic_ns() - asked) / NS if warmup else 0.0
        flushed = flush(order.url)
        if flushed and "no /flush_cache" not in flushed:
            text = f"{flushed}; warm-up: {warmup.failure_text()}" if warmup else flushed
            return refused(order, started_at, text)
        started_at, began = time.time(), time.monotonic_ns()
        with Watch(order) as watch:
            load = self.drive(measured_job(order))
        first = (warmup or load).first_sent
        first_request_s = (first - asked) / NS if first else math.nan
        return judge(order, load, warmup, watch.result(), started_at, began, warmup_s, first_request_s)

    def profile(self, order: PhaseOrder, steps: int = 8, gpu: bool = True) -> "Profile":
        """A profile of `steps` forward passes at the phase's load, after the measured phases (it slows the server down). Writes
        NAME.profile.json beside the launch's files. Raises RuntimeError, TimeoutError or ValueError when there is none to be had,
        ClientBroken when the worker died."""
        from concurrent.futures import ThreadPoolExecutor

        from runner.loadgen.profile import read_profile, start_profile, wait_for_traces
        from runner.records.files import write_json
        from runner.records.paths import LaunchPaths, safe_name

        folder = Path(order.folder) / f"{safe_name(order.name)}.profile"
        job = replace(_job(order, "profile"), seconds=max(3.0, min(10.0, order.phase.seconds * order.scale)))
        self._start_workers(1)
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(self.drive, job)
            time.sleep(1.0)
            try:
                start_profile(order.url, folder, steps, gpu)
            finally:
                loading.result()
        profile = read_profile(wait_for_traces(folder, 120.0), steps).model_copy(update={"simulated": order.simulated})
        write_json(LaunchPaths(Path(order.folder)).profile(order.name), profile.model_dump(mode="json"))
        return profile

    def drive(self, job: Job) -> Load:
        """Drives one job over as many workers as it needs and reads the rows. Raises ClientBroken."""
        count = max(1, min(job.concurrency, math.ceil(job.concurrency / STREAMS_PER_WORKER)))
        return self.drive_split(job, count)

    def drive_split(self, job: Job, count: int) -> Load:
        try:
            self._start_workers(count)
            self._calls += 1
            start = time.monotonic_ns() + int(0.25 * NS) if count > 1 else 0
            parts = [self._part(job, number, count, start) for number in range(count)]
            for worker, part in zip(self._workers, parts, strict=False):
                worker.ask({"do": "drive", "job": part.to_json()})
            patience = 3 * job.seconds + job.request_timeout_s + job.connect_timeout_s + 120
            reports = [worker.answer(patience) for worker in self._workers[:count]]
            rows = [row for part in parts for row in read_rows(Path(part.result))]
        except BaseException:
            # Whatever a worker was doing is lost; a stale answer must not be taken for the next one's.
            self._drop_workers()
            raise
        for part in parts:
            Path(part.result).unlink(missing_ok=True)
        rows.sort(key=lambda row: (row.sent or row.scheduled, row.index))
        return Load(rows, reports)

    def _start_workers(self, count: int) -> None:
        """Waits until new workers are up: a common start must not come before the last of them."""
        new = [Worker(number, self._spawn) for number in range(len(self._workers), count)]
        self._workers += new
        for worker in new:
            worker.ask({"do": "ping"})
        for worker in new:
            worker.answer(60)

    def _part(self, job: Job, number: int, count: int, start: int) -> Job:
        share = job.concurrency // count + (number < job.concurrency % count)
        requests = job.requests // count + (number < job.requests % count) if job.arrival == "closed" else job.requests
        return replace(
            job,
            concurrency=share,
            requests=requests,
            index_start=number,
            index_step=count,
            start_at_ns=start,
            result=str(Path(self._scratch.name) / f"{self._calls}-{number}.rows"),
        )

    def _drop_workers(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def close(self) -> None:
        """Ends the workers. Idempotent."""
        self._drop_workers()
        self._scratch.cleanup()

    def __enter__(self) -> "ProcessDriver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _preload() -> None:
    """What judging needs, imported while the server starts."""
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import runner.loadgen.judging  # noqa: F401


def _job(order: PhaseOrder, stream: str) -> Job:
    phase = order.phase
    return Job(
        url=order.url,
        route=phase.route,
        model=order.model.name,
        arrival=phase.arrival,
        concurrency=phase.concurrency,
        rate=phase.rate or 0.0,
        burstiness=phase.burstiness,
        seed=order.seed,
        stream=f"{order.block}/{order.name}/{stream}/{order.stream}",
        vocab_size=order.model.vocab_size,
        special=order.model.special_token_ids,
        input=LengthRecipe(**phase.input.model_dump()),
        output=LengthRecipe(**phase.output.model_dump()),
        max_context=order.model.max_context,
        shared_prefix=phase.shared_prefix,
        prefix_groups=phase.prefix_groups,
        dataset=phase.dataset,
        dataset_path=phase.dataset_path,
        model_path=order.model.path,
    )


def warmup_job(order: PhaseOrder, budget: float) -> Job:
    """The measured shape with other prompts, until steady or until `budget` seconds are over."""
    job = replace(_job(order, "warmup"), until="steady", seconds=budget)
    return job if order.warmup_output is None else replace(job, output=LengthRecipe(value=order.warmup_output))


def measured_job(order: PhaseOrder) -> Job:
    """The measured load: a number of requests where the phase gives one, else by time."""
    phase = order.phase
    job = replace(_job(order, "measured"), seconds=phase.seconds * order.scale)
    if phase.requests is None:
        return job
    least = phase.concurrency if phase.arrival == "closed" else 1
    return replace(job, until="requests", requests=max(least, math.ceil(phase.requests * min(1.0, order.scale))))


__all__ = ["ClientBroken", "Load", "ProcessDriver", "measured_job", "warmup_job"]
