"""Least squares on arm and block: what a failed baseline launch leaves, slopes, and the odd first launch."""

import numpy as np
import pytest

from runner.analysis.blockfit import first_launch_is_odd, fit_blocks


def table(blocks: int, columns: int, effects: list[float], rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    block = rng.normal(0, 1, (blocks, 1))
    return (block + np.array([0.0, *effects]) + noise * rng.standard_normal((blocks, columns)))[None]


def test_complete_blocks_give_mean_differences_and_two_over_n() -> None:
    rng = np.random.default_rng(1)
    values = table(5, 3, [0.1, -0.2], rng, 0.01)
    fit = fit_blocks(values, np.ones_like(values, bool), np.zeros_like(values), slope=False)
    assert fit.estimate[0] == pytest.approx((values[0, :, 1:] - values[0, :, :1]).mean(axis=0))
    assert fit.unscaled[0] == pytest.approx([0.4, 0.4], rel=1e-6)
    assert fit.df[0] == 8
    assert fit.covariance[0, 0, 1] == pytest.approx(0.2, rel=1e-6)


def test_a_block_without_baseline_is_compared_through_the_other_blocks() -> None:
    """Blocks differ by whole units, so any use of the lone block's level would show at once."""
    rng = np.random.default_rng(2)
    values = table(4, 3, [0.1, -0.2], rng)
    mask = np.ones_like(values, bool)
    mask[0, 0, 0] = False
    fit = fit_blocks(values, mask, np.zeros_like(values), slope=False)
    assert fit.estimate[0] == pytest.approx([0.1, -0.2], abs=1e-6)
    # It still informs on arm 1 against arm 2, hence on arm 1 through arm 2: better than three blocks, worse than four.
    assert 2 / 4 < fit.unscaled[0, 0] < 2 / 3


def test_one_arm_alone_in_a_block_says_nothing() -> None:
    rng = np.random.default_rng(3)
    values = table(4, 2, [0.1], rng)
    mask = np.ones_like(values, bool)
    mask[0, 0, 0] = False
    fit = fit_blocks(values, mask, np.zeros_like(values), slope=False)
    assert fit.unscaled[0, 0] == pytest.approx(2 / 3, rel=1e-6)
    assert fit.df[0] == 2


def test_never_beside_the_baseline_is_not_connected() -> None:
    values = np.zeros((1, 4, 2))
    mask = np.zeros_like(values, bool)
    mask[0, :2, 0] = mask[0, 2:, 1] = True
    fit = fit_blocks(values, mask, np.zeros_like(values), slope=False)
    assert np.isinf(fit.unscaled[0, 0])
    assert fit.df[0] == 0


def test_slope_takes_a_drift_out() -> None:
    rng = np.random.default_rng(4)
    values = table(4, 3, [0.1, -0.2], rng)
    slots = np.array([rng.permutation(3) for _ in range(4)])[None].astype(float)
    fit = fit_blocks(values + 0.05 * slots, np.ones_like(values, bool), slots, slope=True)
    assert fit.estimate[0] == pytest.approx([0.1, -0.2], abs=1e-6)
    assert fit.slope[0] == pytest.approx(0.05, abs=1e-6)


def test_odd_first_launch_is_seen_on_the_slow_side_only() -> None:
    rng = np.random.default_rng(5)
    values = table(4, 4, [0.0, 0.0, 0.0], rng, 0.01)
    first = (0, np.array([0]))
    for shift, expected in ((0.2, True), (0.0, False), (-0.2, False)):
        moved = values.copy()
        moved[0, 0, 0] += shift
        fit = fit_blocks(moved, np.ones_like(values, bool), np.zeros_like(values), slope=False)
        assert bool(first_launch_is_odd(fit, first, 1, 0.01)[0]) is expected


def test_odd_first_launch_rate_under_no_effect_is_its_level() -> None:
    rng = np.random.default_rng(6)
    values = rng.standard_normal((4000, 3, 5))
    fit = fit_blocks(values, np.ones_like(values, bool), np.zeros_like(values), slope=False)
    rate = first_launch_is_odd(fit, (0, np.zeros(4000, dtype=np.intp)), 1, 0.05).mean()
    assert rate == pytest.approx(0.05, abs=0.012)
