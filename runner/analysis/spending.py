"""Error spending over interim looks (Lan and DeMets 1983, Biometrika 70:659), for many arms against one control.

The Pocock-type function spends early, because most flags either matter by several launch-noise widths or not at all. Each look
gets a *nominal* level: the boundary for max |T| is found look by look on simulated studies (normal launches, shared control,
variance estimated from few degrees of freedom) and expressed as the level of that look's own Dunnett distribution, which then
serves for whatever degrees of freedom the real look has (significance-level approach, Jennison and Turnbull 2000, 4.4 and 11.5;
here with the t statistic instead of its normal limit, since the first looks have few degrees of freedom)."""

from functools import lru_cache

import numpy as np

from runner.analysis.dunnett import exceed_probability

PATHS = 100_000
SEED = 20_261
# Of several looks' alpha, the part that is spent: the rest pays for what is approximate (heavy tails, a slow first launch left
# out, variances known from another day), as measured by tests/bench/decide_bench.py.
SPENT_SHARE = 0.8
# One arm without a floor: four pairs of a bimodal node look alike in one study of 128, so more is kept back for the later looks.
SPENT_SHARE_ALONE = 0.65


def spent(alpha: float, fraction: float) -> float:
    """Alpha spent when `fraction` (0..1) of the largest sample is in: alpha ln(1 + (e - 1) t)."""
    return alpha * float(np.log1p((np.e - 1) * min(max(fraction, 0.0), 1.0)))


@lru_cache(maxsize=256)
def nominal_levels(alpha: float, arms: int, looks: tuple[int, ...], most: int, known_df: float = 0.0) -> tuple[float, ...]:
    """Level to test each look at; `looks` are block counts in increasing order, `most` the largest possible count, `known_df` the
    degrees of freedom that the node's noise floor brings. One arm without a floor gets no verdict after three blocks if more may
    follow: on a node of two speeds three pairs look like an effect in one study of 32, four in one of 128. One look at the full count spends the whole alpha. Simulated once for
    each set of arguments with a fixed seed, then remembered."""
    alone = arms == 1 and not known_df
    kept = alpha if len(looks) == 1 else alpha * (SPENT_SHARE_ALONE if alone else SPENT_SHARE)
    cumulative = [spent(kept, look / most) for look in looks]
    if alone and looks[0] == 3 and len(looks) > 1:
        cumulative[0] = 0.0
    if len(looks) == 1:
        return (cumulative[0],)
    levels: list[float] = []
    rng = np.random.default_rng(SEED)
    # More arms than eight change the correlation between looks little and would only cost memory.
    simulated = min(arms, 8)
    total = np.zeros((PATHS, simulated), dtype=np.float32)
    squares = np.zeros(PATHS)
    df = known_df
    if known_df > 0:
        squares += rng.chisquare(known_df, PATHS)
    alive = np.ones(PATHS, dtype=bool)
    done = 0
    for index, look in enumerate(looks):
        step = look - done
        control = rng.standard_normal((PATHS, 1), dtype=np.float32)
        total += np.float32(np.sqrt(step / 2)) * (rng.standard_normal((PATHS, simulated), dtype=np.float32) - control)
        # One arm without a floor has two degrees of freedom a block, see variance.launch_variance.
        gained = (2 if alone else simulated) * (step - (1 if index == 0 else 0))
        if gained > 0:
            squares += rng.chisquare(gained, PATHS)
            df += gained
        done = look
        if df <= 0:
            # One block says nothing of the spread: this look decides nothing and keeps its share for the next.
            cumulative[index] = cumulative[index - 1] if index else 0.0
            levels.append(0.0)
            continue
        largest = np.abs(total).max(axis=1) / np.sqrt(look * squares / df)
        increment = cumulative[index] - (cumulative[index - 1] if index else 0.0)
        survivors = np.sort(largest[alive])
        crossing = min(max(round(increment * PATHS), 1), len(survivors))
        boundary = float(survivors[-crossing]) if increment > 0 else float("inf")
        levels.append(exceed_probability(boundary, simulated, df) if index else cumulative[0])
        alive &= largest < boundary
    return tuple(levels)
