"""Position, predecessor and idle gap: found where there, rarely where not."""

import numpy as np

from runner.analysis.order_effects import order_effects
from runner.records.schema import LaunchRecord
from tests.analysis.example import TPOT, launch

KEYS = [("decode_c1", TPOT)]
NAMES = ["baseline", "a", "b", "c"]


def study(seed: int, *, per_position: float = 0.0, after_b: float = 0.0, per_gap: float = 0.0, blocks: int = 6) -> list[LaunchRecord]:
    rng = np.random.default_rng(seed)
    launches, previous = [], None
    for block in range(blocks):
        for position, index in enumerate(rng.permutation(len(NAMES))):
            gap = float(rng.uniform(1, 10))
            log = 0.003 * rng.standard_normal() + per_position * position + after_b * (previous == "b") + per_gap * gap
            value = {"decode_c1": {TPOT: float(10 * np.exp(log))}}
            launches.append(launch(NAMES[index], block, position, metrics=value, previous_arm=previous, idle_gap_s=gap))
            previous = NAMES[index]
    return launches


def names(result: dict[str, object]) -> set[str]:
    return {test["what"] for test in result["found"]}  # type: ignore[attr-defined,index]


def test_each_effect_is_found_under_its_name() -> None:
    assert "position" in names(order_effects(study(1, per_position=0.01), KEYS))
    assert "predecessor" in names(order_effects(study(2, after_b=0.03), KEYS))
    assert "idle_gap" in names(order_effects(study(3, per_gap=0.003), KEYS))


def test_nothing_is_found_where_nothing_is() -> None:
    found = sum(bool(order_effects(study(seed), KEYS)["found"]) for seed in range(60))
    assert found <= 9  # family-wise 5 % of 60 is 3; 9 or more happens in 0.3 %


def test_adjusted_p_values_are_never_smaller() -> None:
    tests = order_effects(study(5, per_position=0.01), KEYS)["tests"]
    assert [test["what"] for test in tests] == ["position", "idle_gap", "predecessor"]
    assert all(test["p_adjusted"] >= test["p"] for test in tests)


def test_too_few_launches_and_identical_values_are_no_error() -> None:
    assert order_effects([], KEYS) == {"tests": [], "found": []}
    assert order_effects(study(1, blocks=1), KEYS)["tests"] == []
    flat = [record.model_copy(update={"phases": study(1)[0].phases}) for record in study(1)]
    assert order_effects(flat, KEYS)["tests"] == []
