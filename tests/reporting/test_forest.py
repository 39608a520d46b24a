"""Where the forest plot ends."""

import pytest

from runner.reporting.forest import forest, shown_edge
from runner.reporting.plots import guard
from tests.reporting.synthetic import PRIMARY, make


def test_a_small_effect_stays_visible_beside_an_arm_that_is_many_times_worse() -> None:
    assert shown_edge([0.6, 1.3, 122.0, 7548.0], 1.0) == pytest.approx(4.2)
    assert shown_edge([6.9, 29.0, 1974.0], 1.0) == pytest.approx(1.05 * 6.9)
    assert shown_edge([40.0, 90.0], 1.0) == pytest.approx(42.0)


def test_an_inert_arm_has_no_effect_to_be_drawn() -> None:
    """Its one launch differs from the baseline's by noise alone."""
    decision = make().decision
    inert = next(arm for arm in decision.arms if arm.status == "INERT")
    measured = next(arm for arm in decision.arms if arm.verdict == "BETTER")
    told = inert.model_copy(update={"hypotheses": tuple(item.model_copy(update={"effect_pct": -19.0}) for item in measured.hypotheses)})
    decision = decision.model_copy(update={"arms": tuple(told if arm is inert else arm for arm in decision.arms)})
    drawn = guard(lambda: forest(decision, "decode_c1", PRIMARY["decode_c1"]))
    assert drawn is not None and measured.name in drawn.svg and inert.name not in drawn.svg
