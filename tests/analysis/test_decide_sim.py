"""Error rates, coverage and power of the verdicts on simulated studies: 200 a cell here, 2,000 in `make bench-decide`."""

import numpy as np
import pytest

from runner.analysis.verdicts import HIGHER, LOWER, SAME
from tests.bench.decide_cost import SCENARIOS, cost
from tests.bench.decide_sim import SHAPES, Cell, lower_bound, simulate, upper_bound

STUDIES = 200
ARMS, NOISES = (1, 4, 8), (0.002, 0.01, 0.03)
EDGE = float(np.log(1.01))


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_are_kept_in_every_cell_and_over_all(shape: str) -> None:
    """A cell fails when its rate is surely above 6 % (99.9 %), all cells of a shape together when they may be above 6 % (95 %)."""
    wrong = same = missed = total = 0
    for index, (arms, noise) in enumerate((a, n) for a in ARMS for n in NOISES):
        null = simulate(Cell(arms, noise, shape), STUDIES, 100 + index)
        edge = simulate(Cell(arms, noise, shape, effects=(EDGE,)), STUDIES, 200 + index)
        false, false_same = int(null.any_difference.sum()), int(edge.any_false_same.sum())
        uncovered = int((~null.covered).sum())
        for events in (false, false_same, uncovered):
            assert lower_bound(events, STUDIES, 0.999) < 0.06, (shape, arms, noise, false, false_same, uncovered)
        wrong, same, missed, total = wrong + false, same + false_same, missed + uncovered, total + STUDIES
    assert upper_bound(wrong, total) < 0.06
    assert upper_bound(same, total) < 0.06
    assert upper_bound(missed, total) < 0.06


@pytest.mark.parametrize("floor", [0, 12])
@pytest.mark.parametrize("arms", ARMS)
def test_effects_and_equality_are_found(arms: int, floor: int) -> None:
    effect = simulate(Cell(arms, 0.005, effects=(-0.03,) + (0.0,) * (arms - 1), floor=floor), STUDIES, 7)
    found = (effect.verdict[:, 0] == LOWER) & (effect.decided_at[:, 0] > 0) & (effect.decided_at[:, 0] <= 4)
    assert upper_bound(int(found.sum()), STUDIES) >= 0.9
    assert found.mean() >= 0.9
    none = simulate(Cell(arms, 0.003, floor=floor), STUDIES, 8)
    assert ((none.verdict[:, 0] == SAME) & (none.decided_at[:, 0] <= 6)).mean() >= 0.8


def test_a_bimodal_node_gives_no_verdict_inside_its_gap_and_says_so() -> None:
    outcome = simulate(Cell(1, 0.002, "bimodal", effects=(0.05,)), STUDIES, 9)
    assert outcome.bimodal.mean() > 0.95
    assert np.isin(outcome.verdict, (HIGHER, LOWER, SAME)).mean() < 0.03


def test_adjusted_estimates_of_winners_are_less_wrong() -> None:
    outcome = simulate(Cell(4, 0.008, effects=(0.012, 0.0, 0.0, 0.0)), 600, 10)
    won = np.isin(outcome.verdict[:, 0], (HIGHER, LOWER))
    assert won.sum() > 50
    raw, adjusted = outcome.estimate[won, 0].mean() - 0.012, outcome.adjusted[won, 0].mean() - 0.012
    assert raw > 0.001
    assert abs(adjusted) < raw


@pytest.mark.parametrize("lost", [1, 4])
def test_errors_hold_when_a_lost_block_is_made_up_for(lost: int) -> None:
    null, edge = simulate(Cell(4, 0.01, lost=lost), STUDIES, 11), simulate(Cell(4, 0.004, effects=(EDGE,), lost=lost), STUDIES, 12)
    for events in (null.any_difference, edge.any_false_same, ~null.covered, ~edge.covered):
        assert lower_bound(int(events.sum()), STUDIES, 0.999) < 0.06
    assert edge.launches[:, 1::2].max() == 8, "an arm that lost a launch and stays open has eight of its own, in nine blocks"


def test_a_budget_is_never_exceeded_and_errors_hold() -> None:
    outcome = simulate(Cell(4, 0.01, effects=(-0.03, 0.0, 0.0, 0.0), budget=19), 400, 13)
    assert (outcome.launches.sum(axis=1) + outcome.baseline_launches).max() <= 19
    assert lower_bound(int(outcome.any_difference.sum()), 400, 0.999) < 0.06
    assert lower_bound(int((~outcome.covered).sum()), 400, 0.999) < 0.06


def test_launches_are_saved_at_equal_error() -> None:
    row = cost(0.003, STUDIES)
    assert row.of_fixed < 1 / 3
    assert row.least_of_naive < row.of_naive < 0.2
    assert row.right > 0.95
    assert lower_bound(round(row.wrong * STUDIES), STUDIES, 0.999) < 0.06
    assert cost(0.003, STUDIES, scenario=SCENARIOS[1]).of_naive < 0.1
