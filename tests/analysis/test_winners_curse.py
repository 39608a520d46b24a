"""The adjusted estimate: what it does near the boundary, far from it, and without a selection."""

import numpy as np
import pytest

from runner.analysis.verdicts import Result, Rules, judge_table
from runner.analysis.winners_curse import GRID, adjusted_ratios, reported_mean

LOOKS = tuple(range(3, 9))
RULES = Rules(0.05, 1, LOOKS, 8, float(np.log(0.99)), float(np.log(1.01)))


def judged(effect: float, studies: int = 1500, noise: float = 0.01, seed: int = 1) -> Result:
    rng = np.random.default_rng(seed)
    values = noise * rng.standard_normal((studies, 8, 2))
    values[:, :, 1] += effect
    result = judge_table(values, np.ones_like(values, bool), np.zeros_like(values), RULES)
    assert result is not None
    return result


def test_reported_means_overstate_small_effects_and_not_large_ones() -> None:
    curve = np.array(reported_mean((3.0,) * 6, LOOKS))
    small, large = np.searchsorted(GRID, 0.7), np.searchsorted(GRID, 4.0)
    assert curve[small] > 1.2 * GRID[small]
    assert curve[large] == pytest.approx(GRID[large], rel=0.01)


def test_large_effects_stay_and_none_grows_or_turns() -> None:
    far = judged(-0.3)
    assert adjusted_ratios(far, RULES) == pytest.approx(far.last.estimate)
    near = judged(-0.015)
    ratios = adjusted_ratios(near, RULES)
    assert np.all(np.abs(ratios) <= np.abs(near.last.estimate) + 1e-12)
    assert np.all(ratios * near.last.estimate >= 0)


def test_what_was_not_called_different_is_not_touched() -> None:
    result = judged(0.0)
    calm = result.verdict[:, 0] == 0
    assert calm.mean() > 0.9
    assert np.array_equal(adjusted_ratios(result, RULES)[calm], result.last.estimate[calm])


@pytest.mark.parametrize("effect", [0.015, 0.02])
def test_mean_error_of_winners_shrinks(effect: float) -> None:
    result = judged(effect)
    won = result.verdict[:, 0] == 1
    # The estimate at the look that decided, as when the arm stops there.
    assert won.sum() > 300
    raw = result.last.estimate[won, 0].mean() - effect
    assert raw > 0
    assert abs(adjusted_ratios(result, RULES)[won, 0].mean() - effect) < max(raw, 0.1 * effect)
