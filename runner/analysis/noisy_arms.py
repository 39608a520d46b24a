"""Arms that are clearly noisier than the rest are set aside before the launch variance is pooled.

One such arm (decode without CUDA graphs on an H200: 12 % between launches where the others have 0.5 %) in the pool hides every
small effect of the quiet arms, and through the block means its noise leaks into their residuals too, so the rest is fitted
again without it. The noisiest arm is tested against the fit of the others by an F test, at NOISY shared over the arms (Cochran 1941,
Ann. Eugenics 11:47, tests the largest of several variances in the same way). The baseline is never set aside: each comparison needs it, and a noisy one widens them all."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from runner.analysis.blockfit import Fit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
NOISY = 0.01
FEW_DF = 6.0
LEAST = 3


@dataclass(frozen=True)
class Aside:
    """Shapes (S, M), columns as in the fit: which are `noisy`, and the variance of one launch of theirs with its degrees of freedom."""

    noisy: Mask
    variance: Array
    df: Array


Refit = Callable[[Array, Mask, Array], Fit]


def set_aside(values: Array, mask: Mask, slots: Array, fit: Fit, refit: Refit, floor: bool) -> tuple[Fit, Fit, Aside]:
    """(fit to report, fit of the quiet columns, what was set aside). `fit` is that of everything; the reported one has the quiet
    arms' estimates from the quiet columns alone. `floor`: the node's noise is known, then blocks always count in the variance.

    Up to half of the arms are taken out one by one, the noisiest first, and as many stay out as the last significant step has
    taken (Rosner 1983, Technometrics 25:165): one by one with a stop at the first step that shows nothing, two noisy arms would
    hide each other."""
    studies, _, columns = values.shape
    rows, most = np.arange(studies), (columns - 1) // 2
    noisy = np.zeros((studies, columns), dtype=np.bool_)
    aside = Aside(noisy, np.zeros((studies, columns)), np.zeros((studies, columns)))
    quiet, current, out = fit, fit, noisy
    for _ in range(most):
        few: Mask = np.logical_and(current.df < FEW_DF, not floor)
        chosen = _noisiest(current, out)
        possible = chosen >= 1
        out = out.copy()
        out[rows, chosen] |= possible
        kept = mask & ~out[:, None, :]
        current = refit(values, kept, slots)
        own, own_df, rest, rest_df, share = _compare(values, mask, slots, kept, chosen, current, few)
        with np.errstate(divide="ignore", invalid="ignore"):
            unlikely = fdtrc(np.maximum(own_df, 1), np.maximum(rest_df, 1), own / np.maximum(rest * share, 1e-300))
        found = possible & (own_df >= LEAST - 1) & (rest_df >= 2) & (unlikely < NOISY / max(columns - 1, 1))
        if found.any():
            quiet = _put(quiet, found, current)
            noisy = np.where(found[:, None], out, noisy)
            aside = _spreads(values, mask, slots, kept, current, few, found, Aside(noisy, aside.variance, aside.df))
    return _reported(fit, quiet, noisy), quiet, aside


def _spreads(values: Array, mask: Mask, slots: Array, kept: Mask, quiet: Fit, few: Mask, found: Mask, aside: Aside) -> Aside:
    """The variances of all columns that are out where this step `found` something, against the columns that stay."""
    variance, df = aside.variance.copy(), aside.df.copy()
    for column in range(1, values.shape[2]):
        rows = found & aside.noisy[:, column]
        if rows.any():
            chosen = np.full(len(values), column)
            own, own_df, _, _, _ = _compare(values, mask, slots, kept, chosen, quiet, few)
            variance[rows, column], df[rows, column] = own[rows], own_df[rows]
    return Aside(aside.noisy, variance, df)


def _noisiest(fit: Fit, out: Mask) -> NDArray[np.intp]:
    """(S,): the arm with the largest mean square of residuals among those that may be tested; 0 where there is none."""
    allowed = (fit.arm_n >= LEAST) & ~out
    allowed[:, 0] = False
    square = np.where(allowed, fit.arm_ss / np.maximum(fit.arm_n, 1), -1.0)
    best = square.argmax(axis=1)
    return np.where(square.max(axis=1) > 0, best, 0)


def _compare(
    values: Array, mask: Mask, slots: Array, kept: Mask, chosen: NDArray[np.intp], without: Fit, few: Mask
) -> tuple[Array, Array, Array, Array, Array]:
    """Variance and degrees of freedom of the chosen column and of the others, and by how much the first is larger when both launch
    alike. Where `few` launches are there and no floor is, both are taken about each arm's own mean (see launch_variance)."""
    rows = np.arange(len(chosen))
    there = mask[rows, :, chosen]
    blocks = kept.sum(axis=2)
    fitted = np.where(kept, values - without.residual, 0.0)
    # What the others say of a block: the mean of what is fitted, less the arms that happen to be in it.
    arm = np.concatenate([np.zeros((len(chosen), 1)), without.estimate], axis=1)
    level = (fitted - np.where(kept, arm[:, None, :], 0.0)).sum(axis=2) / np.maximum(blocks, 1)
    # And what the fitted slope over positions says of the chosen column's own place in the block.
    middle = np.where(kept, slots, 0.0).sum(axis=2) / np.maximum(blocks, 1)
    level = level + without.slope[:, None] * (slots[rows, :, chosen] - middle)
    known = there & ((blocks > 0) | few[:, None])
    shift = np.where(few[:, None], 0.0, level)
    y = np.where(known, values[rows, :, chosen] - shift, 0.0)
    n = known.sum(axis=1)
    mean = y.sum(axis=1) / np.maximum(n, 1)
    own_df = np.maximum(n - 1, 0).astype(float)
    own = (np.where(known, y - mean[:, None], 0.0) ** 2).sum(axis=1) / np.maximum(own_df, 1)
    rest_df = np.where(few, without.loose_df, without.df)
    rest = np.where(few, without.loose_ss, without.rss) / np.maximum(rest_df, 1)
    leak = np.where(known, 1 / np.maximum(blocks, 1), 0.0).sum(axis=1) / np.maximum(n, 1)
    return own, own_df, rest, rest_df, np.where(few, 1.0, 1 + leak)


def _put(into: Fit, rows: Mask, made: Fit) -> Fit:
    """`made` in these rows (studies), `into` elsewhere."""
    changed = {}
    for name in Fit.__dataclass_fields__:
        old, new = getattr(into, name), getattr(made, name)
        changed[name] = np.where(rows.reshape(-1, *[1] * (new.ndim - 1)), new, old)
    return Fit(**changed)


def _reported(fit: Fit, quiet: Fit, noisy: Mask) -> Fit:
    """Everything as in `fit`; estimates of quiet arms from the quiet columns wherever something was set aside."""
    some: Mask = np.any(noisy, axis=1, keepdims=True)
    instead = some & ~noisy[:, 1:] & np.isfinite(quiet.unscaled)
    return replace(fit, estimate=np.where(instead, quiet.estimate, fit.estimate), unscaled=np.where(instead, quiet.unscaled, fit.unscaled))
