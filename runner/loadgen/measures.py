"""The definitions (measures: 1), each a small pure function. Times are seconds of one monotonic clock; tokens are the server's
own cumulative counts, never chunks. A request that has no such quantity gives NaN, and NaN is left out of percentiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.spec.workload import Slo

Times = Sequence[float] | NDArray[np.float64]
Counts = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """One request in seconds. `times[i]`: chunk i with new tokens; `tokens[i]`: cumulative count then. `good` requests count
    for latencies: completed whole, also after a retraction."""

    scheduled: float
    sent: float
    ended: float
    times: Times
    tokens: Counts
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    outcome: str = "completed"

    @property
    def good(self) -> bool:
        return self.outcome in ("completed", "retracted")


@dataclass(frozen=True)
class Window:
    """The steady window: from the moment the concurrency is reached to the first moment it is left for good. Seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return max(0.0, self.end - self.start)


def ttft(request: Request) -> float:
    """Time to first token, s: arrival of the first chunk with a new token - sent. NaN without a token or if the clock went back."""
    return _after(request.times[0], request.sent) if len(request.times) else math.nan


def ttft_scheduled(request: Request) -> float:
    """First token - scheduled, s: what a user of an open loop waits, the client's own queue included."""
    return _after(request.times[0], request.scheduled) if len(request.times) else math.nan


def tpot(request: Request) -> float:
    """Time per output token, s: (last - first) / (tokens - tokens in the first chunk). NaN when the first chunk brought all."""
    if len(request.times) < 2:
        return math.nan
    rest = int(request.tokens[-1]) - int(request.tokens[0])
    return _after(request.times[-1], request.times[0]) / rest if rest > 0 else math.nan


def e2e(request: Request) -> float:
    """End to end, s: last chunk with a new token - sent."""
    return _after(request.times[-1], request.sent) if len(request.times) else math.nan


def queue_wait(request: Request) -> float:
    """Sent - scheduled, s: how long the client itself held the request back. NaN for one that was never sent."""
    return _after(request.sent, request.scheduled) if request.sent else math.nan


def chunk_gaps(request: Request) -> NDArray[np.float64]:
    """Times between neighbouring chunks with new tokens, s; one fewer than chunks. Negative ones (clock) become NaN."""
    gaps = np.diff(np.asarray(request.times, dtype=np.float64))
    return np.where(gaps < 0, np.nan, gaps)


def tokens_inside(request: Request, window: Window) -> int:
    """Output tokens whose chunk arrived in (start, end]."""
    times = np.asarray(request.times, dtype=np.float64)
    new = np.diff(np.asarray(request.tokens, dtype=np.int64), prepend=0)
    return int(new[(times > window.start) & (times <= window.end)].sum())


def output_throughput(requests: Sequence[Request], window: Window) -> float:
    """Output tokens produced inside the window / its length, tokens/s. Tokens of requests that failed later count: they were produced."""
    return sum(tokens_inside(request, window) for request in requests) / window.length if window.length else math.nan


def input_throughput(requests: Sequence[Request], window: Window) -> float:
    """Prompt tokens of requests whose first token fell in the window / its length, tokens/s."""
    inside = [r.prompt_tokens for r in requests if len(r.times) and window.start < r.times[0] <= window.end]
    return sum(inside) / window.length if window.length else math.nan


def request_throughput(requests: Sequence[Request], window: Window) -> float:
    """Good requests whose last token fell in the window / its length, 1/s."""
    inside = [r for r in requests if r.good and len(r.times) and window.start < r.times[-1] <= window.end]
    return len(inside) / window.length if window.length else math.nan


def meets(request: Request, slo: Slo) -> bool:
    """Did a request meet every limit of the SLO (ms)? One that failed did not; a quantity it does not have is met."""
    if not request.good:
        return False
    pairs = ((slo.ttft_ms, ttft(request)), (slo.tpot_ms, tpot(request)), (slo.e2e_ms, e2e(request)))
    return all(limit is None or math.isnan(value) or value * 1e3 <= limit for limit, value in pairs)


def goodput_share(requests: Sequence[Request], slo: Slo) -> float:
    """Share of *sent* requests that met every SLO (0 to 1); failed and truncated ones are in the denominator."""
    return sum(meets(request, slo) for request in requests) / len(requests) if requests else math.nan


def goodput_rate(requests: Sequence[Request], slo: Slo, window: Window) -> float:
    """Requests a second that met every SLO and ended in the window."""
    good = [r for r in requests if meets(r, slo) and window.start < r.times[-1] <= window.end]
    return len(good) / window.length if window.length else math.nan


def in_flight_mean(requests: Sequence[Request], window: Window) -> float:
    """Time average of the number of requests between sent and their end, over the window."""
    spans = [max(0.0, min(r.ended, window.end) - max(r.sent, window.start)) for r in requests if r.sent]
    return sum(spans) / window.length if window.length else math.nan


def littles_law_residual(requests: Sequence[Request], window: Window, least: int) -> float | None:
    """|L - lambda W| / L (Little 1961): L the mean in flight, lambda the rate and W the mean stay of the requests whose middle
    lies in the window. Far from 0: requests were lost, or the window is not steady. None with fewer than `least` of them."""
    inside = [r for r in requests if r.sent and window.start <= (r.sent + r.ended) / 2 <= window.end]
    if len(inside) < least or not window.length:
        return None
    mean = in_flight_mean(requests, window)
    product = len(inside) / window.length * (sum(r.ended - r.sent for r in inside) / len(inside))
    return abs(mean - product) / mean if mean else None


def rate_error(asked: float, achieved: float) -> float:
    """|achieved / asked - 1| of the sending rate."""
    return abs(achieved / asked - 1) if asked else math.nan


def percentile(values: Sequence[float] | NDArray[np.float64], q: float) -> float:
    """The q-th percentile (linear between order statistics) of the values that are not NaN; NaN when there is none."""
    array = np.asarray(values, dtype=np.float64)
    array = array[~np.isnan(array)]
    return float(np.percentile(array, q)) if array.size else math.nan


def steady_window(requests: Sequence[Request], concurrency: int, stopped_sending: float, step: float = 0.0) -> Window:
    """Where the load was what was asked for. From the first moment the level is reached, to the moment it is left for good. The
    level is `concurrency`, or for an open loop (and a load that never got there) 0.9 of the median in flight between the
    first quarter and the end of sending. Requests that end within `step` (s, about half an engine step) of one another end
    together, so the window's last round is whole. Empty when nothing was sent."""
    moments = sorted([(r.sent, 1) for r in requests if r.sent] + [(r.ended, -1) for r in requests if r.sent])
    if not moments:
        return Window(0.0, 0.0)
    times = np.array([moment[0] for moment in moments])
    levels = np.cumsum([moment[1] for moment in moments])
    level: float = concurrency
    if levels.max() < concurrency:
        begin = times[0] + (stopped_sending - times[0]) / 4
        inside = levels[(times >= begin) & (times <= stopped_sending)]
        level = max(1.0, 0.9 * float(np.median(inside))) if inside.size else 1.0
    reached = np.flatnonzero(levels >= level)
    if not reached.size:
        return Window(float(times[0]), float(times[-1]))
    last = int(reached[-1])
    at = min(last + 1, len(times) - 1)
    while at + 1 < len(times) and times[at + 1] - times[at] <= step:
        at += 1
    return Window(float(times[reached[0]]), float(times[at]))


def measured(requests: Sequence[Request], window: Window) -> list[Request]:
    """The good requests that the window is about: the middle of their stay (sent to end) lies inside it."""
    return [r for r in requests if r.good and window.start <= (r.sent + r.ended) / 2 <= window.end]


def summary(requests: Sequence[Request], window: Window, slo: Slo | None) -> dict[str, float]:
    """All metrics of the registry that this phase has, by name; values that are not finite are left out."""
    inside = measured(requests, window)
    gaps = np.concatenate([chunk_gaps(request) for request in inside]) if inside else np.array([])
    values = {
        "output_tok_s": output_throughput(requests, window),
        "input_tok_s": input_throughput(requests, window),
        "request_s": request_throughput(requests, window),
        "chunk_gap_p50_ms": percentile(gaps, 50) * 1e3,
        "chunk_gap_p99_ms": percentile(gaps, 99) * 1e3,
    }
    for name, measure in (("tpot", tpot), ("ttft", ttft), ("ttft_scheduled", ttft_scheduled), ("e2e", e2e)):
        each = [measure(request) for request in inside]
        values[f"{name}_p50_ms"] = percentile(each, 50) * 1e3
        values[f"{name}_p99_ms"] = percentile(each, 99) * 1e3
    values["queue_wait_p99_ms"] = percentile([queue_wait(request) for request in inside], 99) * 1e3
    if slo is not None and (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms) != (None, None, None):
        values["goodput_share"] = goodput_share(requests, slo)
        values["goodput_req_s"] = goodput_rate(requests, slo, window)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def within(inside: Sequence[Request], batches: int = 8) -> dict[str, float]:
    """Standard errors inside one phase, percent of the value, by metric: the statistic of each of `batches` runs of neighbouring
    requests, their standard deviation / sqrt(batches) (batch means, Conway 1963). {} with fewer than two requests a batch."""
    if len(inside) < 2 * batches:
        return {}
    ordered = sorted(inside, key=lambda request: request.ended)
    found = {}
    for name, measure in (("tpot", tpot), ("ttft", ttft), ("ttft_scheduled", ttft_scheduled), ("e2e", e2e)):
        each = np.array([measure(request) for request in ordered])
        middles = np.array([percentile(batch, 50) for batch in np.array_split(each, batches)])
        whole = percentile(each, 50)
        if np.isfinite(middles).all() and whole > 0:
            found[f"{name}_p50_ms"] = float(middles.std(ddof=1) / math.sqrt(batches) / whole * 100)
    return found


def _after(later: float, earlier: float) -> float:
    """later - earlier, NaN when the clock went backwards."""
    return float(later) - float(earlier) if later >= earlier else math.nan
