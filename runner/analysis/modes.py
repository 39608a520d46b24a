"""Does a node run at two speeds, fixed at launch? A test for two modes in a handful of launches.

Best split of the sorted values into two groups (Fisher 1958, J. Am. Stat. Assoc. 53:789): D = distance of the means over the
pooled standard deviation within (Ashman's D / sqrt(2), Ashman et al. 1994). One group of Gaussian values gives D near 2.65 by
construction, so D is referred to its own distribution under one Gaussian mode, simulated for that number of launches; a lone
outlier is no mode, so each group has at least two members. The dip test has next to no power at a dozen launches."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEAST_LAUNCHES = 5
LEVEL = 0.002
# Heavy tails also split well; modes worth the name are separated by more than this many widths.
LEAST_DISTANCE = 4.0


@dataclass(frozen=True)
class Modes:
    """`count` 1 or 2. `gap`: distance of the two modes (units of the values; 0 for one). `statistic`, `critical`: D and its limit."""

    count: int
    gap: float
    statistic: float
    critical: float
    share_low: float = 1.0


def split_statistic(values: Array) -> tuple[Array, Array, Array]:
    """`values` (S, n) -> best D, the distance of the means, and the size of the lower group, each (S,)."""
    x = np.sort(values, axis=1)
    studies, n = x.shape
    x = x - x.mean(axis=1, keepdims=True)
    total, square = np.cumsum(x, axis=1), np.cumsum(x**2, axis=1)
    sizes = np.arange(2, n - 1)
    left_sum, left_square = total[:, sizes - 1], square[:, sizes - 1]
    right_sum, right_square = total[:, -1:] - left_sum, square[:, -1:] - left_square
    left_mean, right_mean = left_sum / sizes, right_sum / (n - sizes)
    within = left_square - sizes * left_mean**2 + right_square - (n - sizes) * right_mean**2
    width = np.sqrt(np.maximum(within, 0) / (n - 2))
    scale = np.sqrt(square[:, -1:] / n)
    # Ties (identical values) would divide by zero; a width of a millionth of the spread is as good as none.
    distance = (right_mean - left_mean) / np.maximum(width, 1e-6 * scale + 1e-300)
    best = distance.argmax(axis=1)
    rows = np.arange(studies)
    return distance[rows, best], (right_mean - left_mean)[rows, best], sizes[best].astype(float)


@lru_cache(maxsize=128)
def critical_distance(n: int, level: float = LEVEL) -> float:
    """Upper `level` point of D for n launches of one Gaussian mode (simulated, fixed seed)."""
    draws = np.random.default_rng(71_993).standard_normal((20_000, n))
    return float(np.quantile(split_statistic(draws)[0], 1 - level))


def two_modes(values: Array, level: float = LEVEL) -> Modes:
    """Tests n values (logs of one metric over like launches). Fewer than 5 launches cannot show two modes: count 1."""
    clean = np.asarray(values, dtype=float)
    clean = clean[np.isfinite(clean)]
    n = len(clean)
    if n < LEAST_LAUNCHES or np.ptp(clean) <= 0:
        return Modes(1, 0.0, 0.0, float("inf"))
    d, gap, size = (float(item[0]) for item in split_statistic(clean[None, :]))
    limit = max(critical_distance(min(n, 60), level), LEAST_DISTANCE)
    return Modes(2, gap, d, limit, size / n) if d > limit else Modes(1, 0.0, d, limit)


def study_modes(values: Array, mask: NDArray[np.bool_], level: float = LEVEL) -> Modes:
    """Two modes inside a study: (B, M) log values, arms in columns. The sizes of the steps between successive launches of one
    arm are tested: on a node of two speeds they fall into 'same speed' and 'other speed', whatever the arms' effects are."""
    steps = []
    for column in range(values.shape[1]):
        own = values[mask[:, column], column]
        steps.extend(np.abs(np.diff(own)))
    sizes = np.asarray(steps)
    n = len(sizes)
    if n < LEAST_LAUNCHES or np.ptp(sizes) <= 0:
        return Modes(1, 0.0, 0.0, float("inf"))
    d, _, size = (float(item[0]) for item in split_statistic(sizes[None, :]))
    limit = max(critical_step_distance(min(n, 60), level), LEAST_DISTANCE)
    high = np.sort(sizes)[int(size) :]
    low = np.sort(sizes)[: int(size)]
    apart = float(high.min() - low.max()) > float(low.max())
    return Modes(2, float(np.median(high)), d, limit, size / n) if d > limit and apart else Modes(1, 0.0, d, limit)


@lru_cache(maxsize=128)
def critical_step_distance(n: int, level: float = LEVEL) -> float:
    """As `critical_distance`, for absolute differences of Gaussian launches."""
    draws = np.abs(np.random.default_rng(71_994).standard_normal((20_000, n)))
    return float(np.quantile(split_statistic(draws)[0], 1 - level))
