"""From driven requests to the phase's record: window, metrics, checks. Imported by the driver while the server starts."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from runner.loadgen import fitness, measures, steadiness
from runner.loadgen.base import PhaseOrder
from runner.loadgen.datasets import text_name
from runner.loadgen.measures import Request, Window
from runner.loadgen.rows import Row
from runner.loadgen.streams import OUTCOMES
from runner.loadgen.table import write_requests
from runner.records.paths import LaunchPaths
from runner.records.schema import Counts, PhaseRecord

if TYPE_CHECKING:
    from runner.loadgen.driver import Load
    from runner.loadgen.telemetry import Watched

NS = 1_000_000_000


def requests_of(rows: Sequence[Row], origin: int) -> list[Request]:
    """Rows in ns as requests in seconds from `origin` (monotonic ns), so that no digit is lost."""
    return [
        Request(
            scheduled=(row.scheduled - origin) / NS,
            sent=(row.sent - origin) / NS if row.sent else 0.0,
            ended=(row.ended - origin) / NS,
            times=[(time - origin) / NS for time in row.times],
            tokens=row.tokens,
            prompt_tokens=max(row.prompt_tokens, 0) or row.asked_input,
            cached_tokens=row.cached_tokens if row.cached_tokens >= 0 else None,
            outcome=row.outcome,
        )
        for row in rows
    ]


def counts_of(rows: Sequence[Row]) -> Counts:
    """Every request under exactly one word; `sent` is their sum."""
    number = Counter(row.outcome for row in rows)
    return Counts(sent=len(rows), **{word: number[word] for word in OUTCOMES})


def cached_share(rows: Sequence[Row]) -> float | None:
    """Cached over all prompt tokens where the server reports them; None where it does not."""
    known = [row for row in rows if row.cached_tokens >= 0 and row.prompt_tokens > 0]
    total = sum(row.prompt_tokens for row in known)
    return sum(row.cached_tokens for row in known) / total if total else None


def judge(
    order: PhaseOrder,
    load: "Load",
    warmup: "Load | None",
    watched: "Watched",
    started_at: float,
    origin: int,
    warmup_s: float,
    first_request_s: float,
) -> PhaseRecord:
    """`started_at`: Unix seconds at `origin` (monotonic ns). Writes the request table; a full disk raises OSError."""
    phase, limits = order.phase, order.limits
    # Times count from one second before the start, so that 0 always means "never".
    origin -= NS
    requests = requests_of(load.rows, origin)
    counts, cached = counts_of(load.rows), cached_share(load.rows)
    gaps = [gap for r in requests[:200] for gap in measures.chunk_gaps(r).tolist() if not math.isnan(gap)]
    stopped = (load.stopped_sending - origin) / NS
    window = measures.steady_window(requests, phase.concurrency, stopped, step=median(gaps) / 2 if gaps else 0.0)
    closed = phase.arrival == "closed"
    least = max(20, 3 * phase.concurrency) if closed else 50
    sent = [r.sent for r in requests if r.sent]
    span = load.reports[0]["scheduled_span_s"] if load.reports and not closed else None
    client = fitness.fitness(
        lags_ns=[lag for report in load.reports for lag in report["lags_ns"]],
        stall_max_ns=max((report["stall_max_ns"] for report in load.reports), default=0),
        cpu_share=max((report["cpu_share"] for report in load.reports), default=0.0),
        asked_rate=_asked_rate(load),
        achieved_rate=(len(sent) - 1) / (max(sent) - min(sent)) if span and len(sent) > 1 and max(sent) > min(sent) else None,
        residual=measures.littles_law_residual(requests, window, least),
        first_request_s=0.0 if math.isnan(first_request_s) else first_request_s,
    )
    expected = phase.shared_prefix > 0 or phase.dataset != "random_ids"
    reasons = fitness.unserved(counts, cached, limits, expected)
    if load.gave_up:
        reasons.insert(0, f"the server stopped serving: {load.failure_text()}")
    elif reasons and counts.failed + counts.truncated:
        reasons[0] += f": {load.failure_text()}"
    metrics = measures.summary(requests, window, phase.slo)
    if window.length <= 0 or not metrics:
        reasons.append("no steady window: the asked concurrency was never held")
    reasons += fitness.unfit(client, limits)
    reasons += list(watched.invalid_reasons)
    paths = LaunchPaths(Path(order.folder))
    write_requests(paths.requests(order.name), load.rows, origin, started_at - 1.0, window)
    artifacts = {"requests": relative(paths.requests(order.name), order), **{n: relative(p, order) for n, p in watched.files.items()}}
    return PhaseRecord(
        phase=order.name,
        valid=not reasons,
        invalid_reasons=tuple(reasons),
        steadiness=state(order, requests, window, warmup),
        concurrency=phase.concurrency if closed else None,
        rate=phase.rate,
        dataset=dataset_name(order),
        started_at=started_at,
        window_s=window.length,
        warmup_s=warmup_s,
        metrics=metrics,
        within_pct=measures.within(measures.measured(requests, window)),
        counts=counts,
        client=client,
        telemetry=watched.summary,
        cached_share=cached,
        artifacts=artifacts,
    )


def refused(order: PhaseOrder, started_at: float, why: str) -> PhaseRecord:
    """The record of a phase that could not be measured at all."""
    return PhaseRecord(
        phase=order.name,
        valid=False,
        invalid_reasons=(why,),
        concurrency=order.phase.concurrency if order.phase.arrival == "closed" else None,
        rate=order.phase.rate,
        dataset=dataset_name(order),
        started_at=started_at,
    )


def state(order: PhaseOrder, requests: Sequence[Request], window: Window, warmup: "Load | None") -> steadiness.State:
    """Steady, cold, changed or unproven, from the warm-up's windows and those inside the measured one."""
    phase = order.phase
    finished = finished_of(measures.measured(requests, window))
    if phase.arrival == "closed":
        inside = steadiness.rounds(finished, phase.concurrency, window.start)
    else:
        inside = steadiness.slices(finished, open_slices(len(finished)), window.start, window.end) if window.length else []
    if warmup is None:
        return steadiness.verdict([], inside, None)
    if phase.arrival == "closed":
        report = warmup.reports[0]["warm"]
        before = [steadiness.Window(*values) for values in report["windows"]]
        return steadiness.verdict(before, inside, all(r["warm"]["passed"] for r in warmup.reports))
    rows = requests_of(warmup.rows, min((row.scheduled for row in warmup.rows), default=0) - NS)
    good = [r for r in rows if r.good and len(r.times)]
    before = steadiness.slices(finished_of(good), open_slices(len(good)), 1.0, max(r.ended for r in good)) if good else []
    return steadiness.verdict(before, inside, steadiness.warm(before) if len(before) >= steadiness.LEAST_WINDOWS else None)


def open_slices(count: int) -> int:
    """An open loop's windows: about twenty requests each, 5 to 12 of them; with fewer requests there are fewer than 5."""
    return min(12, max(1, count // 20))


def finished_of(requests: Sequence[Request]) -> list[steadiness.Finished]:
    return [
        steadiness.Finished(float(r.times[0]), float(r.times[-1]), int(r.tokens[-1]), int(r.tokens[0])) for r in requests if len(r.times)
    ]


def dataset_name(order: PhaseOrder) -> str:
    """What was sent; a file is named with the head of its SHA-256, since prompts decide MoE routing and cache hits."""
    phase = order.phase
    if phase.dataset == "random_ids" or not phase.dataset_path:
        return phase.dataset
    if phase.dataset == "text":
        return text_name(phase.dataset_path, order.model.path, phase.route)
    try:
        digest = hashlib.sha256(Path(phase.dataset_path).read_bytes()).hexdigest()[:16]
    except OSError:
        digest = "unreadable"
    return f"{phase.dataset}:{digest}"


def relative(path: Path, order: PhaseOrder) -> str:
    """An artifact's path inside the study, as records keep it."""
    try:
        return str(path.relative_to(order.study_folder))
    except ValueError:
        return str(path)


def _asked_rate(load: "Load") -> float | None:
    """The drawn schedule's own rate, requests a second, over all workers; None for a closed loop."""
    if not load.reports or load.reports[0]["scheduled_span_s"] is None:
        return None
    scheduled = [row.scheduled for row in load.rows]
    span = (max(scheduled) - min(scheduled)) / NS if scheduled else 0.0
    return (len(scheduled) - 1) / span if span else None
