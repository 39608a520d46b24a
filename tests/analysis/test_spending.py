"""The nominal levels of looks keep the alpha that they spend."""

import numpy as np
import pytest

from runner.analysis.dunnett import critical_value
from runner.analysis.spending import SPENT_SHARE, nominal_levels, spent


def test_one_look_spends_the_whole_alpha() -> None:
    assert nominal_levels(0.05, 4, (6,), 6) == (pytest.approx(0.05),)


def test_spending_grows_to_alpha() -> None:
    values = [spent(0.05, fraction) for fraction in (0, 0.25, 0.5, 1, 2)]
    assert values == sorted(values)
    assert values[0] == 0
    assert values[-1] == values[-2] == pytest.approx(0.05)


@pytest.mark.parametrize(("arms", "known"), [(1, 5.0), (4, 0.0)])
def test_all_looks_together_cross_as_often_as_spent(arms: int, known: float) -> None:
    looks = (3, 4, 5, 6)
    levels = nominal_levels(0.05, arms, looks, 6, known)
    rng = np.random.default_rng(77)
    n = 60_000
    total, crossed = np.zeros((n, arms)), np.zeros(n, dtype=bool)
    squares, df = rng.chisquare(known, n) if known else np.zeros(n), known
    for block in range(1, 7):
        total += rng.standard_normal((n, arms)) - rng.standard_normal((n, 1))
        if block > 1:
            squares += rng.chisquare(arms, n)
            df += arms
        if block in looks:
            t = np.abs(total).max(axis=1) / np.sqrt(2 * block * squares / df)
            crossed |= t > critical_value(levels[looks.index(block)], arms, df)
    assert crossed.mean() == pytest.approx(0.05 * SPENT_SHARE, rel=0.08)


def test_one_arm_without_a_floor_waits_for_a_fourth_block() -> None:
    assert nominal_levels(0.05, 1, (3, 4, 5), 5)[0] == 0
    assert nominal_levels(0.05, 1, (3,), 3)[0] == pytest.approx(0.05)
    assert nominal_levels(0.05, 1, (3, 4, 5), 5, 6.0)[0] > 0


def test_a_look_at_one_block_decides_nothing_and_keeps_its_share() -> None:
    """Without a floor one block says nothing of the spread: a night of one block whose suspect is launched again has such looks."""
    first, second = nominal_levels(0.05, 1, (1, 2), 2)
    assert first == 0.0 and 0.02 < second <= 0.05
    assert nominal_levels(0.05, 2, (1, 2, 3), 3)[0] == 0.0
