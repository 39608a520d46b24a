"""Verdicts of one (phase, metric): all arms against the baseline, at every look so far, for one study or thousands.

Repeated confidence intervals (Jennison and Turnbull 1989, J. R. Stat. Soc. B 51:305): at each look estimate +- c * standard
error, c from Dunnett's distribution at the look's nominal level, so that all intervals of all looks and arms cover together
with probability 1 - alpha; their intersection over looks is the interval that counts. From it follow BETTER and WORSE (0 is
outside) and, by inclusion in the margins, SAME (two one-sided tests as confidence interval inclusion, Schuirmann 1987)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.analysis.blockfit import Fit, first_launch_is_odd, fit_blocks
from runner.analysis.dunnett import critical_values
from runner.analysis.noisy_arms import set_aside
from runner.analysis.spending import nominal_levels
from runner.analysis.variance import Prior, launch_variance

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
MIN_LAUNCHES = 3
SLOPE_DF = 5
# One-sided level at which a slow first launch is left out: keener where the noise floor keeps the variance honest afterwards.
ODD_FIRST = 0.01
ODD_FIRST_WITH_FLOOR = 0.05
UNRESOLVED, HIGHER, LOWER, SAME = 0, 1, 2, 3


@dataclass(frozen=True)
class Rules:
    """What a verdict needs besides the data. `margin_low` < 0 < `margin_high`: log ratios that do not matter. `looks` are the
    block counts at which the data were or will be looked at, `most` the largest count. `gap` is the log distance between the
    node's modes (0: one mode; one, or (S, 1)). `family` is the number of arms compared. `slower`: +1 where a
    higher value is worse, else -1."""

    alpha: float
    family: int
    looks: tuple[int, ...]
    most: int
    margin_low: float
    margin_high: float
    prior: Prior | None = None
    gap: float | Array = 0.0
    min_launches: int = MIN_LAUNCHES
    slower: int = 1

    def levels(self) -> tuple[float, ...]:
        known = round(self.prior.effective_df, 1) if self.prior is not None else 0.0
        return nominal_levels(self.alpha, self.family, self.looks, self.most, known)


@dataclass(frozen=True)
class Look:
    """Results at one look, shapes (S, A): log ratio, standard error, interval of this look, degrees of freedom, critical value,
    launches of arm and baseline that counted, the launch standard deviation used, and
    whether the arm was set aside as clearly noisier than the rest."""

    estimate: Array
    error: Array
    low: Array
    high: Array
    df: Array
    critical: Array
    launches: Array
    baseline_launches: Array
    launch_sd: Array
    fit: Fit
    noisy: Mask
    dropped_first: Mask


@dataclass(frozen=True)
class Result:
    """After the last look: `low`, `high` are intersections over looks; `verdict` (S, A) of the codes above; `conflict` where the
    looks' intervals have nothing in common (then UNRESOLVED). `decided_at` (S, A): index of the first look with a verdict, -1."""

    last: Look
    low: Array
    high: Array
    verdict: NDArray[np.int64]
    decided_at: NDArray[np.int64]
    conflict: Mask


def look(
    values: Array,
    mask: Mask,
    slots: Array,
    level: float,
    rules: Rules,
    first: tuple[int, NDArray[np.intp]] | None = None,
) -> Look:
    """One look at (S, B, M) data at nominal `level`. `first` = (block, column of each study) of the study's first launch: it is
    left out where it is an outlier (a first launch is known to be suspect, whatever it shows)."""
    fit = _fit(values, mask, slots)
    studies = values.shape[0]
    dropped: Mask = np.zeros(studies, dtype=np.bool_)
    if first is not None:
        rows = np.arange(studies)
        dropped = np.logical_and(_odd(fit, first, rules), mask[rows, first[0], first[1]])
        if dropped.any():
            mask = mask.copy()
            mask[rows[dropped], first[0], first[1][dropped]] = False
            fit = _fit(values, mask, slots)
    fit, quiet, aside = set_aside(values, mask, slots, fit, _fit, floor=rules.prior is not None and rules.prior.df > 0)
    spread = launch_variance(quiet, rules.prior, aside)
    connected = np.isfinite(fit.unscaled)
    error = np.where(connected, np.sqrt(spread.variance * np.where(connected, fit.unscaled, 0.0)), np.inf)
    critical = critical_values(level, rules.family, spread.df)
    launches = fit.arm_n[:, 1:]
    baseline = np.broadcast_to(fit.arm_n[:, :1], launches.shape)
    usable = (launches >= rules.min_launches) & (baseline >= rules.min_launches) & np.isfinite(error)
    with np.errstate(invalid="ignore"):
        half = np.where(usable, critical * error, np.inf)
    return Look(
        estimate=fit.estimate,
        error=error,
        low=np.where(usable, fit.estimate - half, -np.inf),
        high=np.where(usable, fit.estimate + half, np.inf),
        df=spread.df,
        critical=critical,
        launches=launches,
        baseline_launches=baseline,
        launch_sd=np.sqrt(spread.variance),
        fit=fit,
        noisy=aside.noisy[:, 1:],
        dropped_first=dropped,
    )


def _odd(fit: Fit, first: tuple[int, NDArray[np.intp]], rules: Rules) -> Mask:
    if rules.prior is None:
        return first_launch_is_odd(fit, first, rules.slower, ODD_FIRST)
    return first_launch_is_odd(fit, first, rules.slower, ODD_FIRST_WITH_FLOOR, rules.prior.variance, rules.prior.effective_df)


def _fit(values: Array, mask: Mask, slots: Array) -> Fit:
    """With the slope over positions where the design leaves degrees of freedom for it (decided by the design, not the data)."""
    counts = mask.sum(axis=2)
    blocks = (counts > 0).sum(axis=1)
    arms = mask[:, :, 1:].any(axis=1).sum(axis=1)
    df = counts.sum(axis=1) - blocks - arms
    return fit_blocks(values, mask, slots, slope=bool(np.all(df >= SLOPE_DF)))


def code(low: Array, high: Array, rules: Rules) -> NDArray[np.int64]:
    """Verdict codes of intervals in log ratio; a bimodal node widens what the interval must clear by the distance of its modes."""
    wide_low, wide_high = low - rules.gap, high + rules.gap
    same = (wide_low > rules.margin_low) & (wide_high < rules.margin_high)
    return np.where(same, SAME, np.where(wide_low > 0, HIGHER, np.where(wide_high < 0, LOWER, UNRESOLVED)))


def combine(looks: list[Look], rules: Rules) -> Result:
    """The verdict after these looks."""
    low, high = looks[0].low, looks[0].high
    decided = np.where(code(low, high, rules) != UNRESOLVED, 0, -1)
    for index, later in enumerate(looks[1:], 1):
        low, high = np.maximum(low, later.low), np.minimum(high, later.high)
        now = (code(low, high, rules) != UNRESOLVED) & (low <= high)
        decided = np.where((decided < 0) & now, index, decided)
    conflict = low > high
    verdict = np.where(conflict, UNRESOLVED, code(low, high, rules))
    last = looks[-1]
    return Result(
        last=last,
        low=np.where(conflict, last.low, low),
        high=np.where(conflict, last.high, high),
        verdict=verdict,
        decided_at=decided,
        conflict=conflict,
    )


def judge_table(
    values: Array, mask: Mask, slots: Array, rules: Rules, first: tuple[int, NDArray[np.intp]] | None = None, blocks: int | None = None
) -> Result | None:
    """All looks that `blocks` (default: all rows of (S, B, M)) allow; None before the first look."""
    available = values.shape[1] if blocks is None else blocks
    due = [count for count in rules.looks if count <= available]
    if not due:
        return None
    levels = rules.levels()
    results = [look(values[:, :count], mask[:, :count], slots[:, :count], levels[index], rules, first) for index, count in enumerate(due)]
    return combine(results, rules)
