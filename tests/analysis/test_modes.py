"""Two speeds are seen, one speed is not called two."""

import numpy as np
import pytest

from runner.analysis.modes import apart_by_block, mode_gaps, steps_between_launches, study_gaps, two_modes

GAP = float(np.log(1.2))


@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_two_speeds_are_seen_in_a_dozen_launches(noise: float) -> None:
    rng = np.random.default_rng(1)
    values = noise * rng.standard_normal((500, 12)) + GAP * rng.integers(0, 2, (500, 12))
    gaps = mode_gaps(values)
    assert np.mean(gaps > 0) > 0.97
    assert np.median(gaps[gaps > 0]) == pytest.approx(GAP, rel=0.05)


def test_one_gaussian_speed_is_rarely_called_two() -> None:
    values = np.random.default_rng(2).standard_normal((4000, 12))
    assert np.mean(mode_gaps(values) > 0) < 0.006


def test_heavy_tails_are_seldom_called_two() -> None:
    values = np.random.default_rng(3).standard_t(3, (2000, 12))
    assert np.mean(mode_gaps(values) > 0) < 0.03


@pytest.mark.parametrize("values", [[1.0], [1.0] * 12, [0.0, 0.2, 0.0, 0.2], []])
def test_too_little_or_no_spread_is_one_mode(values: list[float]) -> None:
    assert two_modes(np.array(values)).count == 1


def test_exact_ties_at_two_speeds_are_two_modes() -> None:
    found = two_modes(np.array([0.0] * 6 + [GAP] * 6))
    assert found.count == 2
    assert found.gap == pytest.approx(GAP)


def test_two_speeds_inside_a_study_whatever_the_arms_do() -> None:
    rng = np.random.default_rng(4)
    values = 0.004 * rng.standard_normal((300, 3, 5)) + np.array([0, 0.3, -0.1, 0.02, 0.07]) + GAP * rng.integers(0, 2, (300, 3, 5))
    mask = np.ones_like(values, bool)
    assert np.mean(study_gaps(values, mask) > 0) > 0.9
    plain = 0.004 * rng.standard_normal((2000, 3, 5)) + np.array([0, 0.3, -0.1, 0.02, 0.07])
    assert np.mean(study_gaps(plain, np.ones_like(plain, bool)) > 0) < 0.02


def test_blocks_that_differ_are_not_two_speeds_of_the_node() -> None:
    """Prompts are a block's own: all arms step together, and what is compared inside blocks does not feel it."""
    rng = np.random.default_rng(8)
    values = 0.001 * rng.standard_normal((200, 8, 3))
    values += 0.012 * rng.integers(0, 2, (200, 8, 1))
    assert np.mean(study_gaps(values, np.ones_like(values, bool)) > 0) < 0.02
    blocks = np.repeat([0, 1], 4)
    assert apart_by_block(np.array([6.186, 6.191, 6.180, 6.187, 6.116, 6.108, 6.121, 6.106]), blocks)
    assert not apart_by_block(np.array([6.186, 6.116, 6.180, 6.187, 6.191, 6.108, 6.121, 6.106]), blocks)


def test_steps_skip_launches_that_failed() -> None:
    values = np.array([[[1.0], [9.0], [1.5]]])
    steps = steps_between_launches(values, np.array([[[True], [False], [True]]]))
    assert steps[0, 1] == 0.5
    assert np.isnan(steps[0, 0])
