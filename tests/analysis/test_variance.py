"""The launch variance: pooling, the floor, and the arm that is noisier than the rest."""

import numpy as np
import pytest

from runner.analysis.blockfit import Fit, fit_blocks
from runner.analysis.variance import Prior, launch_variance


def fit(studies: int, blocks: int, columns: int, seed: int = 1, scale: np.ndarray | float = 1.0, block_sd: float = 0.0) -> Fit:
    rng = np.random.default_rng(seed)
    values = scale * rng.standard_normal((studies, blocks, columns)) + block_sd * rng.standard_normal((studies, blocks, 1))
    return fit_blocks(values, np.ones_like(values, bool), np.zeros_like(values), slope=False)


def test_pooled_variance_is_unbiased_and_ignores_blocks() -> None:
    spread = launch_variance(fit(4000, 4, 5, block_sd=5.0))
    assert spread.df[0, 0] == 12
    # Arms that look noisier are compared by a larger variance: a tenth on average.
    assert np.median(spread.variance) == pytest.approx(1.0, abs=0.06)
    assert 1.0 < spread.variance.mean() < 1.13


def test_one_arm_without_floor_has_more_freedom_and_blocks_only_widen() -> None:
    calm, moved = launch_variance(fit(4000, 3, 2)), launch_variance(fit(4000, 3, 2, block_sd=2.0))
    assert calm.df[0, 0] == 4
    assert calm.variance.mean() == pytest.approx(1.0, abs=0.05)
    assert moved.variance.mean() > 3


def test_three_equal_pairs_are_not_taken_for_quiet() -> None:
    quiet = fit(1, 3, 2, scale=1e-6)
    prior = Prior(0.01**2, 11)
    spread = launch_variance(quiet, prior)
    assert spread.variance[0, 0] >= float(prior.least)
    assert np.sqrt(spread.variance[0, 0]) > 0.006
    assert launch_variance(quiet).variance[0, 0] < 1e-10


def test_a_floor_that_the_study_contradicts_is_dropped() -> None:
    noisy = fit(1, 4, 5, scale=1.0)
    spread = launch_variance(noisy, Prior(0.01**2, 11))
    assert spread.variance[0, 0] == pytest.approx(float(noisy.rss[0] / noisy.df[0]))
    assert spread.df[0, 0] == 12


def test_a_suspected_arm_is_compared_by_more_than_the_pool() -> None:
    spread = launch_variance(fit(500, 8, 5, scale=np.array([1.0, 1.0, 1.0, 1.0, 2.0])))
    assert np.median(spread.variance[:, 3]) > 1.3 * np.median(spread.variance[:, 0])
    assert np.all(spread.df[:, 3] == spread.df[:, 0])


def test_other_studies_are_believed_only_so_far() -> None:
    assert Prior(1.0, 1e6).effective_df == pytest.approx(6, rel=1e-3)
    assert Prior(1.0, 6).effective_df == pytest.approx(3)
    assert Prior(1.0, 0).effective_df == 0
