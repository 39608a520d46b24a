"""Is the load steady? Windows of TPOT and throughput, a test for what has not settled, a search for a change inside.

Standard library only: the worker tests while it warms up. A window is one full round of the concurrency (as many finished
requests as there are streams), so that prefill and decode weigh alike in every window."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

LEAST_WINDOWS = 5
TPOT_TOLERANCE = 0.02
THROUGHPUT_TOLERANCE = 0.05

State = Literal["steady", "cold", "unproven", "changed"]


@dataclass(frozen=True)
class Finished:
    """One finished request, in seconds: first and last token's time, tokens in all and in the first chunk."""

    first: float
    last: float
    tokens: int
    first_tokens: int = 1

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first chunk; None for a request of one chunk."""
        rest = self.tokens - self.first_tokens
        return (self.last - self.first) / rest if rest > 0 else None


@dataclass(frozen=True)
class Window:
    """One round: `tpot` in seconds a token (median over its requests; NaN where none has one), `throughput` in tokens a second."""

    tpot: float
    throughput: float


def fmean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def median(values: Iterable[float]) -> float:
    """As statistics.median, whose module would cost the worker a tenth of its start."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def rounds(finished: Sequence[Finished], concurrency: int, start: float) -> list[Window]:
    """Windows of `concurrency` requests in order of their end; the first begins at `start` (seconds). An incomplete last round is left out."""
    ordered = sorted(finished, key=lambda request: request.last)
    windows, begin = [], start
    for at in range(0, len(ordered) - concurrency + 1, concurrency):
        group = ordered[at : at + concurrency]
        end = group[-1].last
        tpots = [request.tpot for request in group if request.tpot is not None]
        if end > begin:
            windows.append(Window(median(tpots) if tpots else math.nan, sum(request.tokens for request in group) / (end - begin)))
        begin = end
    return windows


def slices(finished: Sequence[Finished], count: int, start: float, end: float) -> list[Window]:
    """Open loop: `count` equal slices of time; a request belongs to the slice of its last token. Empty slices are left out."""
    length = (end - start) / count
    windows = []
    for number in range(count):
        group = [r for r in finished if start + number * length <= r.last < start + (number + 1) * length]
        tpots = [request.tpot for request in group if request.tpot is not None]
        if group:
            windows.append(Window(median(tpots) if tpots else math.nan, sum(r.tokens for r in group) / length))
    return windows


def drift(values: Sequence[float]) -> float:
    """Relative change from the first to the last value along the Theil-Sen line (median of pairwise slopes; Sen 1968)."""
    slopes = [(values[j] - values[i]) / (j - i) for i in range(len(values)) for j in range(i + 1, len(values))]
    level = median(values)
    return abs(median(slopes) * (len(values) - 1) / level) if slopes and level else 0.0


def trending(values: Sequence[float]) -> bool:
    """Mann-Kendall: is the order of the values so one-sided that chance gives it in under about 5 % (one-sided)?"""
    n = len(values)
    score = sum((values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n))
    if n <= LEAST_WINDOWS:
        return abs(score) >= 8
    return abs(score) - 1 > 1.645 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def settled(values: Sequence[float], tolerance: float) -> bool:
    """The last `LEAST_WINDOWS` values neither trend by more than `tolerance`, nor is one of them far from the rest.

    Far: more than `tolerance` and more than six times the median absolute deviation away from the median."""
    last = list(values[-LEAST_WINDOWS:])
    if trending(last) and drift(last) > tolerance:
        return False
    level = median(last)
    usual = median(abs(value - level) for value in last)
    return all(abs(value - level) <= max(tolerance * level, 6 * usual) for value in last)


def warm(windows: Sequence[Window]) -> bool:
    """The warm-up's stopping rule: enough windows, and both quantities have settled."""
    if len(windows) < LEAST_WINDOWS:
        return False
    tpots = [window.tpot for window in windows if not math.isnan(window.tpot)]
    fine = len(tpots) < LEAST_WINDOWS or settled(tpots, TPOT_TOLERANCE)
    return fine and settled([window.throughput for window in windows], THROUGHPUT_TOLERANCE)


def change_point(values: Sequence[float], tolerance: float, alpha: float = 0.01) -> int | None:
    """Where the level of `values` changes by more than `tolerance` (relative), or None: the split with the largest two-sample
    t statistic, Bonferroni over splits (Hawkins 1977 gives the exact law; this bound is conservative)."""
    n = len(values)
    if n < LEAST_WINDOWS:
        return None
    best, where = 0.0, None
    for split in range(2, n - 1):
        left, right = values[:split], values[split:]
        a, b = fmean(left), fmean(right)
        within = sum((v - a) ** 2 for v in left) + sum((v - b) ** 2 for v in right)
        deviation = math.sqrt(within / (n - 2) * (1 / len(left) + 1 / len(right)))
        score = abs(a - b) / deviation if deviation > 0 else (math.inf if a != b else 0.0)
        if score > best and abs(a - b) > tolerance * abs(fmean(values)):
            best, where = score, split
    if where is None or t_tail(best, n - 2) * 2 * (n - 3) > alpha:
        return None
    return where


def t_tail(t: float, df: int) -> float:
    """Upper tail of Student's t with integer `df`, in closed form (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    if math.isinf(t):
        return 0.0
    theta = math.atan(t / math.sqrt(df))
    cos, sin = math.cos(theta), math.sin(theta)
    if df % 2:
        term, total = cos, 0.0
        for k in range(1, df - 1, 2):
            total += term
            term *= cos * cos * (k + 1) / (k + 2)
        inside = 2 / math.pi * (theta + sin * total)
    else:
        term, total = 1.0, 0.0
        for k in range(0, df - 1, 2):
            total += term
            term *= cos * cos * (k + 1) / (k + 2)
        inside = sin * total
    return (1 - inside) / 2


def verdict(before: Sequence[Window], measured: Sequence[Window], warm_passed: bool | None) -> State:
    """The phase's state. `before`: windows of the warm-up (`warm_passed` null: there was none), `measured`: of the measured window.

    cold: the warm-up's budget ended with enough windows and no settling. changed: a change point inside the measured window.
    unproven: fewer than `LEAST_WINDOWS` windows, also with the warm-up's last ones before them."""
    if warm_passed is False and len(before) >= LEAST_WINDOWS:
        return "cold"
    series = list(measured)
    if len(series) < LEAST_WINDOWS:
        series = [*list(before)[-LEAST_WINDOWS:], *series] if warm_passed else []
    if len(series) < LEAST_WINDOWS:
        return "unproven"
    tpots = [window.tpot for window in series if not math.isnan(window.tpot)]
    throughputs = [window.throughput for window in series]
    if change_point(tpots, TPOT_TOLERANCE) is not None or change_point(throughputs, THROUGHPUT_TOLERANCE) is not None:
        return "changed"
    return "steady"
