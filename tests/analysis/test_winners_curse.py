"""The adjusted estimate: what it does near the boundary and far from it."""

import numpy as np
import pytest

from runner.analysis.winners_curse import adjusted, conditional_estimate


def test_far_from_the_boundary_nothing_changes() -> None:
    z = np.array([12.0, -12.0])
    assert conditional_estimate(z, np.full(2, 2.5)) == pytest.approx(z, abs=1e-3)
    assert adjusted(z, np.full(2, 2.5)) == pytest.approx(z, abs=1e-3)


def test_near_the_boundary_it_shrinks_but_keeps_the_sign() -> None:
    z = np.array([2.6, -2.6])
    shrunk = adjusted(z, np.full(2, 2.5))
    assert 0 < shrunk[0] < 2.6
    assert shrunk[1] == pytest.approx(-shrunk[0])


def test_the_conditional_estimate_solves_its_equation() -> None:
    rng = np.random.default_rng(1)
    mu = float(conditional_estimate(np.array([3.0]), np.array([2.5]))[0])
    draws = mu + rng.standard_normal(2_000_000)
    assert draws[np.abs(draws) > 2.5].mean() == pytest.approx(3.0, abs=0.02)


@pytest.mark.parametrize("truth", [1.5, 2.5, 3.5])
def test_mean_error_of_winners_shrinks(truth: float) -> None:
    z = truth + np.random.default_rng(2).standard_normal(50_000)
    won = z[z > 2.5]
    raw, better = won.mean() - truth, adjusted(won, np.full(len(won), 2.5)).mean() - truth
    assert raw > 0
    assert abs(better) < raw
