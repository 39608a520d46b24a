"""Many comparisons with one shared control: Dunnett's two-sided critical value, and adjusted p-values.

T_a = (sqrt(1 - rho) Z_a + sqrt(rho) Z_0) / S with S^2 ~ chi^2(df) / df; P(max |T_a| <= c) is integrated numerically
(Dunnett 1955, J. Am. Stat. Assoc. 50:1096; Dunnett and Sobel 1954). Families of different metrics or phases are joined by
Sidak's inequality (Sidak 1967), which holds for any correlation between them."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr, stdtr, stdtrit

Array = NDArray[np.float64]
SHARED_CONTROL = 0.5


@lru_cache(maxsize=1)
def _normal_nodes() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    return nodes, weights / weights.sum()


@lru_cache(maxsize=1)
def _unit_nodes() -> tuple[Array, Array]:
    """Nodes on (0, 1), dense towards 0, where a small variance estimate makes the large T."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    u, w = (nodes + 1) / 2, weights / 2
    return u**3, w * 3 * u**2


def exceed_probability(c: float, arms: int, df: float, rho: float = SHARED_CONTROL) -> float:
    """P(max over `arms` of |T| > c) under no effect. `df` may be infinite."""
    if arms == 1:
        return float(2 * stdtr(df, -c)) if np.isfinite(df) else float(2 * ndtr(-c))
    if np.isfinite(df):
        u, weights = _unit_nodes()
        scale = np.sqrt(2 * gammaincinv(df / 2, u) / df)
    else:
        scale, weights = np.ones(1), np.ones(1)
    z, z_weights = _normal_nodes()
    width = c * scale[:, None]
    shift, root = np.sqrt(rho) * z[None, :], np.sqrt(1 - rho)
    outside = ndtr((-width - shift) / root) + ndtr((-width + shift) / root)
    any_outside = -np.expm1(arms * np.log1p(-np.minimum(outside, 1 - 1e-16)))
    return float(weights @ (any_outside @ z_weights))


@lru_cache(maxsize=4096)
def critical_value(level: float, arms: int, df: float, rho: float = SHARED_CONTROL) -> float:
    """The c with P(max |T| > c) = `level`; infinite where `level` is 0 or there is no degree of freedom."""
    if level <= 0 or df <= 0 or arms < 1:
        return float("inf")
    if arms == 1:
        return float(-stdtrit(df, level / 2)) if np.isfinite(df) else _solve(level, 1, df, rho)
    return _solve(level, arms, df, rho)


def _solve(level: float, arms: int, df: float, rho: float) -> float:
    """False position (Illinois) on the logarithm of the level, which is nearly straight in log c."""

    def excess(log_c: float) -> float:
        return float(np.log(max(exceed_probability(float(np.exp(log_c)), arms, df, rho), 1e-300) / level))

    low, high = 0.0, 1.5
    at_low, at_high = excess(low), excess(high)
    while at_high > 0:
        low, at_low, high = high, at_high, high + 1.5
        if high > 16:
            return float("inf")
        at_high = excess(high)
    if at_low <= 0:
        low, at_low = -20.0, float(np.log(1 / level))
    for _ in range(60):
        middle = high - at_high * (high - low) / (at_high - at_low)
        value = excess(middle)
        if abs(value) < 1e-7 or high - low < 1e-9:
            break
        if value < 0:
            high, at_high, at_low = middle, value, at_low / 2
        else:
            low, at_low, at_high = middle, value, at_high / 2
    return float(np.exp(middle))


def critical_values(level: float, arms: int, df: Array, rho: float = SHARED_CONTROL) -> Array:
    """`critical_value` for an array of degrees of freedom; they are rounded down (to tenths below 10, then to halves and wholes),
    which errs on the wide side."""
    known = np.asarray(df)
    grid = np.where(known < 10, 10, np.where(known < 20, 2, 1))
    rounded = np.where(np.isfinite(known), np.floor(known * grid + 1e-9) / grid, np.inf)
    unique, inverse = np.unique(rounded, return_inverse=True)
    return np.array([critical_value(level, arms, float(value), rho) for value in unique])[inverse].reshape(np.shape(df))


def sidak_level(alpha: float, families: int) -> float:
    """The level for each of `families` so that all together keep `alpha`."""
    return float(-np.expm1(np.log1p(-alpha) / max(families, 1)))


def adjusted_p(t: float, arms: int, df: float, families: int = 1, rho: float = SHARED_CONTROL) -> float:
    """Family-wise p-value of one statistic |t| among `arms` x `families`, as one look."""
    one = exceed_probability(abs(t), arms, df, rho)
    return float(-np.expm1(families * np.log1p(-min(one, 1 - 1e-16))))
