"""When requests are wanted: absolute schedules, drawn once from a seed, never corrected by what the server does.

Rates of the drawn schedule are exactly the asked ones: gaps are rescaled to their sum (for Poisson arrivals that is the
process conditioned on its count), so two phases with one rate offer one load."""

import random
from itertools import pairwise


def gamma_schedule(rate: float, burstiness: float, count: int, seed: int) -> list[float]:
    """`count` arrival times in seconds from 0, at `rate` requests a second. Gaps are gamma distributed with shape `burstiness`
    (1: Poisson; under 1: bursty; over 1: more even). The first arrival is at 0 and the mean gap is 1/rate exactly.
    Raises ValueError for a rate, shape or count that is not positive."""
    if rate <= 0 or burstiness <= 0 or count <= 0:
        raise ValueError(f"rate, burstiness and count must be positive, not {rate}, {burstiness}, {count}")
    draw = random.Random(f"arrivals/{seed}")
    gaps = [draw.gammavariate(burstiness, 1.0 / burstiness) for _ in range(count)]
    scale = count / (rate * sum(gaps)) if sum(gaps) > 0 else 0.0
    times, now = [], 0.0
    for gap in gaps:
        times.append(now)
        now += gap * scale
    return times


def trace_schedule(stamps: list[float], speed: float = 1.0) -> list[float]:
    """Arrival times of a trace in seconds from its first arrival, `speed` times faster. Raises ValueError for unordered stamps."""
    if any(later < earlier for earlier, later in pairwise(stamps)):
        raise ValueError("the trace's timestamps are not in order")
    return [(stamp - stamps[0]) / speed for stamp in stamps] if stamps else []


def count_for(rate: float, seconds: float, least: int = 8) -> int:
    """How many arrivals fill `seconds` at `rate`, never fewer than `least`."""
    return max(least, round(rate * seconds))
