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
Mask = NDArray[np.bool_]
LEAST_LAUNCHES = 5
LEVEL = 0.002
# Heavy tails also split well; modes worth the name are separated by more than this many widths.
LEAST_DISTANCE = 4.0
SIMULATED = (12, 16, 20, 28, 40, 60)


@dataclass(frozen=True)
class Modes:
    """`count` 1 or 2. `gap`: distance of the two modes (units of the values; 0 for one). `statistic`, `critical`: D and its limit."""

    count: int
    gap: float
    statistic: float
    critical: float


@dataclass(frozen=True)
class Splits:
    """Best splits of many samples, each (S,): D, distance of the means, size of the lower group, its largest and the upper group's
    smallest member."""

    distance: Array
    gap: Array
    lower: NDArray[np.int64]
    top_of_lower: Array
    bottom_of_upper: Array


def split(values: Array) -> Splits:
    """`values` (S, n), n at least 4."""
    x = np.sort(values, axis=1)
    studies, n = x.shape
    centre = x.mean(axis=1, keepdims=True)
    total, square = np.cumsum(x - centre, axis=1), np.cumsum((x - centre) ** 2, axis=1)
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
    lower = sizes[best]
    return Splits(distance[rows, best], (right_mean - left_mean)[rows, best], lower, x[rows, lower - 1], x[rows, lower])


def critical_distance(n: int, folded: bool = False) -> float:
    """Upper LEVEL point of D for n launches of one Gaussian mode (`folded`: absolute values). Above 12 launches it changes little
    and is taken from the next simulated number below."""
    return _critical_distance(n if n <= 12 else max(size for size in SIMULATED if size <= n), folded)


@lru_cache(maxsize=64)
def _critical_distance(n: int, folded: bool, level: float = LEVEL) -> float:
    """Simulated with a fixed seed."""
    draws = np.random.default_rng(71_993).standard_normal((20_000, n))
    return max(float(np.quantile(split(np.abs(draws) if folded else draws).distance, 1 - level)), LEAST_DISTANCE)


def mode_gaps(values: Array) -> Array:
    """`values` (S, n) -> (S,): distance of the two modes, 0 where one mode explains the launches or there are fewer than 5."""
    studies, n = values.shape
    if n < LEAST_LAUNCHES:
        return np.zeros(studies)
    found = split(values)
    return np.where(found.distance > critical_distance(n), found.gap, 0.0)


def two_modes(values: Array) -> Modes:
    """Tests the n values of one node (logs of one metric over like launches)."""
    clean = np.asarray(values, dtype=float)
    clean = clean[np.isfinite(clean)]
    n = len(clean)
    if n < LEAST_LAUNCHES or np.ptp(clean) <= 0:
        return Modes(1, 0.0, 0.0, float("inf"))
    gap = float(mode_gaps(clean[None, :])[0])
    return Modes(2 if gap > 0 else 1, gap, float(split(clean[None, :]).distance[0]), critical_distance(n))


def apart_by_block(values: Array, blocks: NDArray[np.int64]) -> bool:
    """Do the two groups of `values` (n,) part between blocks alone? Then it is the blocks that differ (each has its own prompts), not
    launches, and comparisons inside blocks do not feel it."""
    found = split(values[None, :])
    upper = values >= found.bottom_of_upper[0]
    several = [upper[blocks == block] for block in np.unique(blocks) if (blocks == block).sum() > 1]
    return len(several) > 1 and all(bool(group.all() or not group.any()) for group in several)


def steps_between_launches(values: Array, mask: Mask) -> Array:
    """(S, B, M) -> (S, (B - 1) M): size of the step from each launch to the next one of the same arm, NaN where there is none."""
    last = np.where(mask[:, 0], values[:, 0], np.nan)
    steps = []
    for block in range(1, values.shape[1]):
        now = np.where(mask[:, block], values[:, block], np.nan)
        steps.append(np.abs(now - last))
        last = np.where(np.isnan(now), last, now)
    return np.concatenate(steps, axis=1) if steps else np.empty((len(values), 0))


def _together(large: Mask, there: Mask, arms: int) -> Mask:
    """(S, (B - 1) M) -> (S,): in every block that several arms step into, all of them take a large step or none does."""
    shape = (len(large), -1, arms)
    counts, larger = there.reshape(shape).sum(axis=2), (large & there).reshape(shape).sum(axis=2)
    return np.asarray(((larger == 0) | (larger == counts) | (counts < 2)).all(axis=1) & (counts > 1).any(axis=1))


def study_gaps(values: Array, mask: Mask) -> Array:
    """(S, B, M) log values, arms in columns -> (S,): distance of two speeds seen inside the study, 0 where there is one.

    Whatever the arms' effects are, on a node of two speeds the steps between successive launches of one arm fall into 'same
    speed' and 'other speed'. The larger steps must also be clear of the smaller ones by more than these are long. A node's speeds
    show in more than one arm: where three or more were launched and one alone takes the larger steps, that arm is noisy. Where all
    arms always take the larger steps together, the blocks differ (each has its own prompts), and comparisons do not feel it."""
    steps = steps_between_launches(values, mask)
    arm_of_step = np.tile(np.arange(values.shape[2]), max(values.shape[1] - 1, 0))
    several = mask.any(axis=1).sum(axis=1) > 2
    gaps = np.zeros(len(values))
    counts = np.isfinite(steps).sum(axis=1)
    for n in np.unique(counts):
        if n < LEAST_LAUNCHES:
            continue
        rows = np.flatnonzero(counts == n)
        own = np.sort(steps[rows], axis=1)[:, :n]
        found = split(own)
        upper = np.array([np.median(line[lower:]) for line, lower in zip(own, found.lower, strict=True)])
        apart = found.bottom_of_upper - found.top_of_lower > found.top_of_lower
        large = steps[rows] >= found.bottom_of_upper[:, None]
        arms = np.array([len(set(arm_of_step[line])) for line in large])
        apart &= (arms > 1) | ~several[rows]
        apart &= ~_together(large, np.isfinite(steps[rows]), values.shape[2])
        gaps[rows] = np.where((found.distance > critical_distance(int(n), folded=True)) & apart, upper, 0.0)
    return gaps
