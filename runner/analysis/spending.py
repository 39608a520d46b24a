"""Error spending over interim looks (Lan and DeMets 1983, Biometrika 70:659), for many arms against one control.

The Pocock-type function spends early, because most flags either matter by several launch-noise widths or not at all.
Each look gets a *nominal* level from the joint normal distribution of max |Z| over looks; the statistic of that look is then
referred to its own t distribution at that level (significance-level approach, Jennison and Turnbull 2000, sections 4.4 and 11.5)."""

from functools import lru_cache

import numpy as np

from runner.analysis.dunnett import exceed_probability

PATHS = 200_000
SEED = 20_261


def spent(alpha: float, fraction: float) -> float:
    """Alpha spent when `fraction` (0..1) of the largest sample is in: alpha ln(1 + (e - 1) t)."""
    return alpha * float(np.log1p((np.e - 1) * min(max(fraction, 0.0), 1.0)))


@lru_cache(maxsize=256)
def nominal_levels(alpha: float, arms: int, looks: tuple[int, ...], most: int) -> tuple[float, ...]:
    """Level to test each look at; `looks` are block counts in increasing order, `most` the largest possible count.

    One look at the full count spends the whole alpha. Simulated once per argument with a fixed seed, then remembered."""
    cumulative = [spent(alpha, look / most) for look in looks]
    levels = [cumulative[0]]
    if len(looks) == 1:
        return tuple(levels)
    rng = np.random.default_rng(SEED)
    # More arms than eight change the correlation between looks little and would only cost memory.
    simulated = min(arms, 8)
    total = np.zeros((PATHS, simulated), dtype=np.float32)
    alive = np.ones(PATHS, dtype=bool)
    done = 0
    for index, look in enumerate(looks):
        step = look - done
        control = rng.standard_normal((PATHS, 1), dtype=np.float32)
        total += np.float32(np.sqrt(step / 2)) * (rng.standard_normal((PATHS, simulated), dtype=np.float32) - control)
        done = look
        largest = np.abs(total).max(axis=1) / np.sqrt(look)
        increment = cumulative[index] - (cumulative[index - 1] if index else 0.0)
        survivors = np.sort(largest[alive])
        crossing = max(round(increment * PATHS), 1)
        boundary = float(survivors[-crossing])
        if index:
            levels.append(exceed_probability(boundary, simulated, float("inf")))
        alive &= largest < boundary
    return tuple(levels)
