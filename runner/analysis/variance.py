"""Launch variance of one (phase, metric): pooled over arms, steadied by the node's noise floor, never below what that allows.

Assumptions, said once: (1) launches of all arms share one variance of the log value (an arm that is clearly noisier than the
rest is set aside, see noisy_arms, and gets its own, Welch 1947); (2) the variance in a study scatters around the node's noise floor like a scaled inverse
chi-square (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3:3), with BETWEEN_STUDIES degrees of freedom for the scatter between
studies; (3) where the study is clearly noisier than its floor the floor is not believed and the study stands alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, gammaincinv

from runner.analysis.blockfit import Fit
from runner.analysis.noisy_arms import FEW_DF, LEAST, Aside

Array = NDArray[np.float64]
BETWEEN_STUDIES = 6.0
# A study noisier than its floor at this one-sided level does not use the floor: cheap when wrong, since then its own launches
# speak, and it keeps a floor from a quieter day from making false differences.
CLEARLY = 0.25
SUSPECT = 0.2


@dataclass(frozen=True)
class Prior:
    """What the noise floor says of one (phase, metric): variance of log values between launches (one, or one a study, (S,)) and
    its degrees of freedom."""

    variance: float | Array
    df: float

    @property
    def effective_df(self) -> float:
        """Degrees of freedom worth believing in another study."""
        return 1 / (1 / self.df + 1 / BETWEEN_STUDIES) if self.df > 0 else 0.0

    @property
    def least(self) -> Array:
        """Lower 90 % bound of the floor's variance: no study is taken to be quieter than that."""
        return np.asarray(self.variance * (self.df / (2 * gammaincinv(self.df / 2, 0.9))) if self.df > 0 else 0.0)


@dataclass(frozen=True)
class Spread:
    """`variance`, `df` (S, A): of one launch, for each arm's comparison."""

    variance: Array
    df: Array


def launch_variance(fit: Fit, prior: Prior | None = None, aside: Aside | None = None) -> Spread:
    """The variance to use in each comparison. `fit`: of the columns that are not set `aside`.

    Without a floor and with fewer than FEW_DF degrees of freedom, launches are compared with their own arm's mean and blocks
    are ignored *in the variance only*: block effects can then only widen the interval, and a study of one arm has twice the
    degrees of freedom."""
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(fit.df > 0, fit.rss / np.maximum(fit.df, 1e-9), np.nan)
        loose = np.where(fit.loose_df > 0, fit.loose_ss / np.maximum(fit.loose_df, 1e-9), np.nan)
    if prior is not None and prior.df > 0:
        d0 = prior.effective_df
        known = np.where(np.isnan(own), prior.variance, own)
        moderated = (d0 * prior.variance + fit.df * known) / (d0 + fit.df)
        floor = np.maximum(moderated, prior.least)
        noisier = (fit.df > 0) & (fdtrc(np.maximum(fit.df, 1), prior.df, known / prior.variance) < CLEARLY)
        variance = np.where(noisier, np.maximum(known, floor), floor)
        df = np.where(noisier, np.maximum(fit.df, 1.0), d0 + fit.df)
    else:
        few = (fit.df < FEW_DF) & ~np.isnan(loose)
        variance = np.where(few, loose, own)
        df = np.where(few, fit.loose_df, fit.df)
    arms = fit.estimate.shape[1]
    pooled, pooled_df = np.repeat(variance[:, None], arms, axis=1), np.repeat(df[:, None], arms, axis=1)
    suspected = _with_suspects(fit, pooled)
    return Spread(suspected, pooled_df) if aside is None else _with_noisy(Spread(suspected, pooled_df), pooled, aside)


def _with_suspects(fit: Fit, pooled: Array) -> Array:
    """An arm whose launches lie apart more than most (F test against the rest at SUSPECT) but not clearly so is compared with the
    mean of its own and the pool's variance: three launches that are noisier by a small factor often do not show it."""
    n = fit.arm_n
    share = np.maximum(fit.df[:, None] * n / np.maximum(n.sum(axis=1, keepdims=True), 1.0), 1e-9)
    own = fit.arm_ss / share
    rest_df = np.maximum(fit.df[:, None] - share, 1e-9)
    rest = (fit.rss[:, None] - fit.arm_ss) / rest_df
    with np.errstate(divide="ignore", invalid="ignore"):
        suspect = (n >= LEAST) & (fdtrc(share, rest_df, own / np.maximum(rest, 1e-300)) < SUSPECT)
    return np.where(suspect[:, 1:], (np.maximum(own[:, 1:], pooled) + pooled) / 2, pooled)


def _with_noisy(others: Spread, pooled: Array, aside: Aside) -> Spread:
    """A noisy arm is compared with the mean of its own and the baseline's variance (Welch 1947; the baseline's is the pool's)."""
    noisy, own, own_df = aside.noisy[:, 1:], aside.variance[:, 1:], np.maximum(aside.df[:, 1:], 1.0)
    mean = (np.maximum(own, pooled) + pooled) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = 4 * mean**2 / (own**2 / own_df + pooled**2 / np.maximum(others.df, 1.0))
    return Spread(np.where(noisy, mean, others.variance), np.where(noisy, np.maximum(welch, 1.0), others.df))
