"""Where the forest plot ends."""

import pytest

from runner.reporting.forest import shown_edge


def test_a_small_effect_stays_visible_beside_an_arm_that_is_many_times_worse() -> None:
    assert shown_edge([0.6, 1.3, 122.0, 7548.0], 1.0) == pytest.approx(4.2)
    assert shown_edge([6.9, 29.0, 1974.0], 1.0) == pytest.approx(1.05 * 6.9)
    assert shown_edge([40.0, 90.0], 1.0) == pytest.approx(42.0)
