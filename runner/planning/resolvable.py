"""The smallest effect that a number of blocks shows, from the spread between launches. No SciPy: the plan answers within a second."""

from collections.abc import Mapping
from math import sqrt
from statistics import NormalDist
from typing import Any


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t by the expansion 26.7.5 of Abramowitz and Stegun; within 2 % from 3 degrees of freedom on (tested)."""
    z = NormalDist().inv_cdf(probability)
    v = max(freedom, 1.0)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / v + g2 / v**2 + g3 / v**3 + g4 / v**4


def could_see_pct(noise_pct: float, blocks: int, arms: int, family: int, alpha: float, power: float = 0.9) -> float:
    """Percent. `noise_pct`: standard deviation between launches; comparisons are differences within a block, so their variance is
    twice that over `blocks`; degrees of freedom (blocks - 1) * arms (shared control); two-sided level alpha / family (Bonferroni,
    a little above Dunnett's)."""
    if blocks < 2:
        return float("inf")
    freedom = (blocks - 1) * max(1, arms)
    level = alpha / max(1, family) / 2
    return noise_pct * sqrt(2 / blocks) * (t_quantile(1 - level, freedom) + t_quantile(power, freedom))


def launch_noise_pct(noise: Mapping[str, Any], phase: str, metric: str) -> float | None:
    """Standard deviation between launches, percent, from a node's noise_floor.json (`entries` with phase, metric, between_pct);
    None when it was not measured there."""
    for entry in noise.get("entries", ()):
        if entry.get("phase") == phase and entry.get("metric") == metric and entry.get("df", 1) > 0:
            return float(entry["between_pct"])
    return None
