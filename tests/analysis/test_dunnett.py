"""Dunnett's distribution against closed forms, published values and simulation."""

import numpy as np
import pytest
from scipy import stats

from runner.analysis.dunnett import adjusted_p, critical_value, critical_values, exceed_probability, sidak_level


@pytest.mark.parametrize("df", [2, 5, 30])
def test_one_arm_is_student(df: int) -> None:
    assert critical_value(0.05, 1, df) == pytest.approx(stats.t.isf(0.025, df), rel=1e-6)


# Dunnett (1964), Biometrics 20:482, table II: two-sided 5 %, equal group sizes.
@pytest.mark.parametrize(("arms", "df", "value"), [(2, 10, 2.57), (4, 10, 2.89), (8, 20, 2.90), (4, 60, 2.51)])
def test_published_values(arms: int, df: int, value: float) -> None:
    assert critical_value(0.05, arms, df) == pytest.approx(value, abs=0.01)


def test_matches_simulation_with_few_degrees_of_freedom() -> None:
    rng = np.random.default_rng(5)
    z = (rng.standard_normal((200_000, 4)) - rng.standard_normal((200_000, 1))) / np.sqrt(2)
    t = np.abs(z / np.sqrt(rng.chisquare(4, (200_000, 1)) / 4)).max(axis=1)
    for level in (0.1, 0.02):
        assert np.mean(t > critical_value(level, 4, 4)) == pytest.approx(level, rel=0.06)


def test_inverse_and_limits() -> None:
    c = critical_value(0.01, 8, 12)
    assert exceed_probability(c, 8, 12) == pytest.approx(0.01, rel=1e-4)
    assert critical_value(0.0, 3, 5) == np.inf
    assert critical_value(0.05, 3, 0) == np.inf
    assert critical_value(0.05, 3, np.inf) < critical_value(0.05, 3, 50)


def test_arrays_round_towards_wider_intervals() -> None:
    values = critical_values(0.05, 3, np.array([[4.0, 4.19], [np.inf, 4.1]]))
    assert values[0, 1] == values[1, 1] == critical_value(0.05, 3, 4.1)
    assert values[0, 0] > values[0, 1] > values[1, 0]


def test_sidak_and_adjusted_p() -> None:
    assert 1 - (1 - sidak_level(0.05, 5)) ** 5 == pytest.approx(0.05)
    c = critical_value(sidak_level(0.05, 3), 4, 10)
    assert adjusted_p(c, 4, 10, 3) == pytest.approx(0.05, rel=1e-3)
