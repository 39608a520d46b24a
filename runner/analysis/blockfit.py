"""Least squares of log values on arm + block (+ slope over positions), for one study or thousands at once.

Method: the intra-block analysis of a block design with fixed block effects (Cochran and Cox 1957, ch. 9). A block whose
baseline launch failed still informs through the other arms it holds; alone it says nothing about the baseline, whatever its
level. This is the mixed model's limit for blocks that differ freely, so it is right however large the block effects are.
Shapes: studies S, blocks B, columns M = 1 + arms; column 0 is the baseline."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
RIDGE = 1e-9
NOT_CONNECTED = 1e4


@dataclass(frozen=True)
class Fit:
    """`estimate` (S, A): log ratio to the baseline. `unscaled` (S, A): its variance divided by sigma^2, infinite where the data
    connect nothing. `covariance` (S, A, A): of the estimates, divided by sigma^2. `rss`, `df` (S,): residual sum of squares and degrees of freedom. `arm_ss` (S, M), `arm_n` (S, M): residual
    sum of squares and launches of each column. `residual` (S, B, M): 0 where masked. `loose_ss`, `loose_df` (S,): spread of
    each column about its own mean, blocks ignored. `slope` (S,): per position, 0 where not fitted."""

    estimate: Array
    unscaled: Array
    covariance: Array
    rss: Array
    df: Array
    arm_ss: Array
    arm_n: Array
    residual: Array
    leverage: Array
    loose_ss: Array
    loose_df: Array
    slope: Array


def fit_blocks(values: Array, mask: Mask, slots: Array, slope: bool) -> Fit:
    """`values`, `mask`, `slots` of shape (S, B, M): log values, which exist, and positions within the block."""
    studies, blocks, columns = values.shape
    weight = mask.astype(float)
    count = weight.sum(axis=2, keepdims=True)
    safe = np.maximum(count, 1.0)
    y = np.where(mask, values, 0.0)
    y_centred = (y - y.sum(axis=2, keepdims=True) / safe) * weight
    arms = columns - 1
    parameters = arms + (1 if slope else 0)
    # Design, centred within blocks: (S, B, M, P). The dummy of arm a in row m is [m == a + 1].
    dummies = np.zeros((columns, arms))
    dummies[1:, :] = np.eye(arms)
    design = np.empty((studies, blocks, columns, parameters))
    design[..., :arms] = dummies - weight[:, :, None, 1:] / safe[..., None]
    if slope:
        position = np.where(mask, slots, 0.0)
        design[..., arms] = position - position.sum(axis=2, keepdims=True) / safe
    design *= weight[..., None]
    flat = design.reshape(studies, blocks * columns, parameters)
    target = y_centred.reshape(studies, blocks * columns)
    normal = np.einsum("snp,snq->spq", flat, flat)
    ridge = np.eye(parameters) * RIDGE
    inverse = np.linalg.inv(normal + ridge)
    coefficients = np.einsum("spq,sq->sp", inverse, np.einsum("snp,sn->sp", flat, target))
    residual = (target - np.einsum("snp,sp->sn", flat, coefficients)).reshape(y.shape) * weight
    diagonal = np.einsum("spp->sp", inverse)
    unscaled = np.where(diagonal[:, :arms] > NOT_CONNECTED, np.inf, diagonal[:, :arms])
    rank = (diagonal <= NOT_CONNECTED).sum(axis=1)
    n = weight.sum(axis=(1, 2))
    used_blocks = (count[:, :, 0] > 0).sum(axis=1)
    df = np.maximum(n - used_blocks - rank, 0.0)
    leverage = (np.einsum("snp,spq,snq->sn", flat, inverse, flat).reshape(y.shape) + 1 / safe) * weight
    arm_n = weight.sum(axis=1)
    arm_mean = y.sum(axis=1) / np.maximum(arm_n, 1.0)
    loose = ((y - arm_mean[:, None, :]) * weight) ** 2
    return Fit(
        estimate=coefficients[:, :arms],
        unscaled=unscaled,
        covariance=inverse[:, :arms, :arms],
        rss=(residual**2).sum(axis=(1, 2)),
        df=df,
        arm_ss=(residual**2).sum(axis=1),
        arm_n=arm_n,
        residual=residual,
        leverage=leverage,
        loose_ss=loose.sum(axis=(1, 2)),
        loose_df=np.maximum(arm_n - 1, 0.0).sum(axis=1),
        slope=coefficients[:, arms] if slope else np.zeros(studies),
    )


def first_launch_is_odd(
    fit: Fit,
    first: tuple[int, NDArray[np.intp]],
    slower: int,
    level: float,
    known_variance: float | Array = 0.0,
    known_df: float = 0.0,
) -> Mask:
    """(S,): is the study's first launch (block, column per study) an outlier on the slow side (`slower`: +1 or -1) by its
    deleted residual at one-sided `level`? A launch variance known from the noise floor counts with its degrees of freedom.

    Belsley, Kuh and Welsch 1980. The rule is fixed beforehand and looks at one named launch only, so that it cannot be used to
    pick launches; leaving out a launch that was fine costs one launch and biases nothing."""
    block, columns = first
    rows = np.arange(len(columns))
    error = fit.residual[rows, block, columns]
    free = np.maximum(1 - fit.leverage[rows, block, columns], 1e-9)
    df = np.maximum(fit.df - 1, 0.0) + known_df
    rest = np.maximum(fit.rss - error**2 / free, 0.0) + known_df * known_variance
    with np.errstate(divide="ignore", invalid="ignore"):
        t = slower * error / np.sqrt(free * rest / np.maximum(df, 1e-9))
    limit = np.where(df >= 1, -stdtrit(np.maximum(df, 1), level), np.inf)
    return np.asarray((t > limit) & (free > 1e-6))
