"""Estimates that led to a stop are too large on average. The adjustment conditions on having crossed the boundary.

For z = estimate / error seen because |z| > c, the conditional maximum likelihood estimate undoes the selection but overshoots
near c; the weighted mean K z + (1 - K) z_c with K = 1 / (1 + (z - z_c)^2) has the smaller error (Zhong and Prentice 2008,
Biostatistics 9:621; Whitehead 1986 for sequential trials). Arms without BETTER or WORSE were not selected and stay as they are."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from runner.analysis.verdicts import HIGHER, LOWER, Result

Array = NDArray[np.float64]


def conditional_estimate(z: Array, c: Array) -> Array:
    """Maximum likelihood of mu given z and |z| > c: solves z = E[Z | |Z| > c] by bisection (the mean is increasing in mu)."""
    size, limit = np.abs(z), np.minimum(c, np.abs(z))
    low, high = np.zeros_like(size), size.copy()
    for _ in range(50):
        middle = (low + high) / 2
        too_small = _conditional_mean(middle, limit) < size
        low, high = np.where(too_small, middle, low), np.where(too_small, high, middle)
    return np.asarray(np.sign(z) * (low + high) / 2)


def _conditional_mean(mu: Array, c: Array) -> Array:
    """E[Z | |Z| > c] for Z ~ N(mu, 1)."""
    density = (np.exp(-((c - mu) ** 2) / 2) - np.exp(-((c + mu) ** 2) / 2)) / np.sqrt(2 * np.pi)
    with np.errstate(divide="ignore"):
        tail = np.exp(log_ndtr(mu - c)) + ndtr(-mu - c)
    return np.asarray(mu + density / np.maximum(tail, 1e-300))


def adjusted(z: Array, c: Array) -> Array:
    """The weighted mean of z and its conditional estimate, both shapes (...)."""
    conditional = conditional_estimate(z, c)
    weight = 1 / (1 + (z - conditional) ** 2)
    return np.asarray(weight * z + (1 - weight) * conditional)


def adjusted_ratios(result: Result) -> Array:
    """(S, A): bias-adjusted log ratios; equal to the raw ones where nothing was selected."""
    last = result.last
    usable = np.isfinite(last.error) & (last.error > 0) & np.isfinite(last.critical)
    error = np.where(usable, last.error, 1.0)
    z = np.where(usable, last.estimate / error, 0.0)
    chosen = usable & ((result.verdict == HIGHER) | (result.verdict == LOWER)) & (np.abs(z) > last.critical)
    # The t scale is mapped to the normal one by its standard deviation only; beyond 8 errors there is nothing to adjust.
    return np.where(chosen & (np.abs(z) < 8), adjusted(z, np.where(usable, last.critical, 1.0)) * error, last.estimate)
