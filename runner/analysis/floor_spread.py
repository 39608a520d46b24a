"""How far A/A launches lie apart, as a study will feel it.

A study compares inside blocks: every arm of a block gets the same prompts, and the next block gets others. What differs between
blocks cancels out there, so it does not belong to the floor: launches are compared with the mean of their own block, after a
straight drift over launches (least squares with block effects). Where launches do not come in blocks, with their overall mean."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtr, stdtrit

Array = NDArray[np.float64]
Blocks = NDArray[np.int64]
LEAST_TO_DROP = 5  # four launches and a line leave two degrees of freedom to tell an outlier by
LEAST_DF = 2


@dataclass(frozen=True)
class Spread:
    """Of S series: standard deviation about block means and a straight line over launches, `df`, slope a launch and its p-value,
    residuals, standard deviation of the block means and the p-value of there being no block effect (0 and 1 without blocks)."""

    sd: Array
    df: float
    slope: Array
    slope_p: Array
    residual: Array
    blocks_sd: Array
    blocks_p: Array


def spread_without_drift(values: Array, index: Array, arms: int = 1, blocks: Blocks | None = None) -> Spread:
    """`values` (S, n), `index` (n,): when each launch was; `blocks` (n,): its block. With too few launches for a line the plain
    spread is given."""
    studies, n = values.shape
    membership = np.zeros(n, dtype=np.int64) if blocks is None else np.unique(blocks, return_inverse=True)[1]
    groups = int(membership.max()) + 1
    none = np.zeros(studies), np.ones(studies)
    residual, centred = values - _means(values, membership)[:, membership], _centred(index, membership)
    sxx = float(centred @ centred)
    df = n - arms - groups + 1
    if df < 2 or sxx == 0:
        df = max(df, 0)
        sd = np.sqrt((residual**2).sum(axis=1) / df) if df else np.zeros(studies)
        return Spread(sd, float(df), np.zeros(studies), np.ones(studies), residual, *none)
    slope = residual @ centred / sxx
    residual = residual - slope[:, None] * centred
    df -= 1
    rss = (residual**2).sum(axis=1)
    sd = np.sqrt(rss / df)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(sd > 0, np.abs(slope) * np.sqrt(sxx) / sd, np.where(slope != 0, np.inf, 0.0))
    between = none if groups < 2 else _between(values, index, membership, rss, df)
    return Spread(sd, float(df), slope, np.asarray(2 * stdtr(df, -t)), residual, *between)


def floor_spread(values: Array, blocks: Blocks | None = None) -> Spread:
    """(S, n) A/A launches in time order, their blocks (n,) -> the spread that goes into the floor. A first launch that is an
    outlier (deleted residual at 5 %, as in a study) is left out: it would hide how quiet the node is afterwards."""
    n = values.shape[1]
    index = np.arange(n, dtype=float)
    in_blocks = blocks is not None and _worth(blocks)
    used = blocks if blocks is not None and in_blocks else np.zeros(n, dtype=np.int64)
    whole = spread_without_drift(values, index, blocks=used)
    mates = np.flatnonzero(used[1:] == used[0]) + 1
    if n < LEAST_TO_DROP or not len(mates) or (in_blocks and not _worth(used[1:])):
        return whole
    rest = spread_without_drift(values[:, 1:], index[1:], blocks=used[1:])
    after = _centred(index[1:], np.unique(used[1:], return_inverse=True)[1])
    reach = index[0] - index[mates].mean()
    expected = values[:, mates].mean(axis=1) + rest.slope * reach
    error = rest.sd * np.sqrt(1 + 1 / len(mates) + reach**2 / (after @ after))
    odd = np.abs(values[:, 0] - expected) > -stdtrit(rest.df, 0.025) * error
    return Spread(
        sd=np.where(odd, rest.sd, whole.sd),
        df=rest.df,
        slope=np.where(odd, rest.slope, whole.slope),
        slope_p=np.where(odd, rest.slope_p, whole.slope_p),
        residual=np.where(odd[:, None], np.concatenate([np.zeros((len(values), 1)), rest.residual], axis=1), whole.residual),
        blocks_sd=np.where(odd, rest.blocks_sd, whole.blocks_sd),
        blocks_p=np.where(odd, rest.blocks_p, whole.blocks_p),
    )


def _worth(blocks: Blocks) -> bool:
    """Several blocks of several launches, enough of them for a line besides."""
    _, counts = np.unique(blocks, return_counts=True)
    return int((counts > 1).sum()) > 1 and len(blocks) - len(counts) - 1 >= LEAST_DF


def _means(values: Array, membership: Blocks) -> Array:
    """(S, n), block of each launch -> (S, B): mean of each block."""
    chosen = membership[None, :] == np.arange(membership.max() + 1)[:, None]
    return np.asarray(values @ chosen.T / chosen.sum(axis=1))


def _centred(index: Array, membership: Blocks) -> Array:
    return np.asarray(index - _means(index[None, :], membership)[0, membership])


def _between(values: Array, index: Array, membership: Blocks, rss: Array, df: int) -> tuple[Array, Array]:
    """Standard deviation of block means, and the F test's p-value for no block effect: the line alone against line and blocks."""
    means = _means(values, membership)
    more = means.shape[1] - 1
    straight = (spread_without_drift(values, index).residual ** 2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(rss > 0, (straight - rss) / more / (rss / df), np.where(straight > 1e-12, np.inf, 0.0))
    return means.std(axis=1, ddof=1), np.asarray(fdtrc(more, df, np.maximum(ratio, 0.0)))
