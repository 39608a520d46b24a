"""Launch variance of one (phase, metric): pooled over arms, steadied by the node's noise floor, never below what that allows.

Assumptions, said once: (1) launches of all arms share one variance of the log value (an arm that is clearly noisier than the
rest gets its own, Welch 1947); (2) the variance in a study scatters around the node's noise floor like a scaled inverse
chi-square (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3:3), with BETWEEN_STUDIES degrees of freedom for the scatter between
studies; (3) where the study is clearly noisier than its floor the floor is not believed and the study stands alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, gammaincinv

from runner.analysis.blockfit import Fit

Array = NDArray[np.float64]
BETWEEN_STUDIES = 6.0
# A study noisier than its floor at this one-sided level does not use the floor: cheap when wrong, since then its own launches
# speak, and it keeps a floor from a quieter day from making false differences.
CLEARLY = 0.25
ARM_CLEARLY = 0.01
FEW_DF = 6.0


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


def launch_variance(fit: Fit, prior: Prior | None = None) -> Spread:
    """The variance to use in each comparison.

    Without a floor and with fewer than FEW_DF degrees of freedom, launches are compared with their own arm's mean and blocks
    are ignored *in the variance only*: block effects can then only widen the interval, and a study of one arm has twice the
    degrees of freedom."""
    arms = fit.estimate.shape[1]
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
    return _noisy_arms(fit, variance, df, arms)


def _noisy_arms(fit: Fit, variance: Array, df: Array, arms: int) -> Spread:
    """Gives an arm whose residuals clearly exceed the pool its own variance (mean of its and the baseline's, Welch's df)."""
    per_arm_variance = np.repeat(variance[:, None], arms, axis=1)
    per_arm_df = np.repeat(df[:, None], arms, axis=1)
    if arms < 2:
        return Spread(per_arm_variance, per_arm_df)
    n = fit.arm_n
    total = np.maximum(n.sum(axis=1, keepdims=True), 1.0)
    share = np.maximum(fit.df[:, None] * n / total, 1e-9)
    own = fit.arm_ss / share
    rest_df = np.maximum(fit.df[:, None] - share, 1e-9)
    rest = (fit.rss[:, None] - fit.arm_ss) / rest_df
    with np.errstate(divide="ignore", invalid="ignore"):
        noisy = (n >= 3) & (fdtrc(share, rest_df, own / np.maximum(rest, 1e-300)) < ARM_CLEARLY)
        a, b = own[:, 1:], np.broadcast_to(own[:, :1], own[:, 1:].shape)
        mean = (a + b) / 2
        welch = 4 * mean**2 / (a**2 / share[:, 1:] + b**2 / share[:, :1])
    use = noisy[:, 1:] & (mean > per_arm_variance)
    return Spread(np.where(use, mean, per_arm_variance), np.where(use, np.maximum(welch, 1.0), per_arm_df))
