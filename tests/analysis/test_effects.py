"""Effects over full, constrained and fractional sets of arms, and the sentences that say them."""

import re
from itertools import product

import numpy as np
import pytest

from runner.analysis.effects import contrasts, effect_sentences, effects
from runner.records.decision import Effect
from runner.spec.protocol import Protocol
from tests.analysis.example import PHASES, measured, plan

PROTOCOL = Protocol()
FULL = {"baseline": {"m": "off", "s": "off"}, "a": {"m": "on", "s": "off"}, "b": {"m": "off", "s": "on"}, "ab": {"m": "on", "s": "on"}}


def found(levels: dict[str, dict[str, str]], truth: dict[str, float], blocks: int = 4, **extra: object) -> dict[tuple[str, ...], Effect]:
    rng = np.random.default_rng(1)
    launches = measured(rng, list(levels), blocks, effects=truth, noise=0.002, levels=levels)
    rows = effects(plan(levels), launches, PROTOCOL, levels)
    return {tuple(f"{f}={v}" for f, v in zip(row.factors, row.levels, strict=True)): row for row in rows}


def test_full_factorial_main_effects_and_interaction() -> None:
    rows = found(FULL, {"a": -0.03, "b": 0.0, "ab": -0.05})
    assert rows[("m=on",)].effect_pct == pytest.approx(3.9, abs=0.4)
    assert rows[("s=on",)].effect_pct == pytest.approx(1.0, abs=0.4)
    assert rows[("m=on", "s=on")].effect_pct == pytest.approx(2.0, abs=0.8)
    assert rows[("m=on",)].low_pct < 3.9 < rows[("m=on",)].high_pct
    assert not rows[("m=on",)].aliases
    assert not rows[("m=on",)].exploratory


def test_conditional_factor_has_its_own_effect_and_no_impossible_interaction() -> None:
    levels = {"baseline": {"m": "off"}, "x": {"m": "on", "bytes": "1MB"}, "y": {"m": "on", "bytes": "4MB"}}
    rows = found(levels, {"x": -0.02, "y": -0.04})
    assert rows[("m=on",)].effect_pct == pytest.approx(3.0, abs=0.4)
    assert rows[("bytes=4MB",)].effect_pct == pytest.approx(2.0, abs=0.4)
    assert set(rows) == {("m=on",), ("bytes=4MB",)}


def test_missing_combination_leaves_the_other_pairs() -> None:
    levels = {name: own for name, own in FULL.items() if name != "ab"}
    rows = found(levels, {"a": -0.03, "b": 0.01})
    assert rows[("m=on",)].effect_pct == pytest.approx(3.0, abs=0.4)
    assert ("m=on", "s=on") not in rows


def test_fraction_names_its_aliases() -> None:
    """A half fraction of 2^3 with C = AB: each main effect goes with the interaction of the other two."""
    arms = [
        {"a": "off", "b": "off", "c": "on"},
        {"a": "on", "b": "off", "c": "off"},
        {"a": "off", "b": "on", "c": "off"},
        {"a": "on", "b": "on", "c": "on"},
    ]
    terms = {term.factors: term for term in contrasts(arms, {"a": "off", "b": "off", "c": "off"})}
    assert terms[("a",)].aliases == ("b=on x c=on",)
    assert terms[("b",)].aliases == ("a=on x c=on",)
    assert all(sum(term.weights) == pytest.approx(0) for term in terms.values())


def test_weights_recover_an_additive_truth_exactly() -> None:
    factors = {"a": ("0", "1", "2"), "b": ("0", "1"), "c": ("0", "1")}
    arms = [dict(zip(factors, combo, strict=True)) for combo in product(*factors.values())]
    truth = {("a", "1"): 0.1, ("a", "2"): 0.3, ("b", "1"): -0.2, ("c", "1"): 0.05}
    values = np.array([sum(truth.get(item, 0.0) for item in arm.items()) for arm in arms])
    for term in contrasts(arms, {"a": "0", "b": "0", "c": "0"}):
        expected = truth[(term.factors[0], term.levels[0])] if len(term.factors) == 1 else 0.0
        assert float(np.array(term.weights) @ values) == pytest.approx(expected, abs=1e-12)


def test_exploratory_where_arms_were_stopped_early() -> None:
    rng = np.random.default_rng(1)
    launches = [record for record in measured(rng, list(FULL), 5, noise=0.002, levels=FULL) if record.arm != "b" or record.block < 3]
    rows = effects(plan(FULL), launches, PROTOCOL, FULL)
    assert all(row.exploratory for row in rows)


def test_one_arm_or_no_data_gives_nothing() -> None:
    assert effects(plan({"baseline": {}}), [], PROTOCOL, ["baseline"]) == []
    assert effects(plan(FULL), [], PROTOCOL, FULL) == []


def test_family_wise_coverage_of_effect_intervals() -> None:
    missed = 0
    made = plan(FULL)
    for seed in range(120):
        launches = measured(np.random.default_rng(seed), list(FULL), 3, noise=0.01)
        missed += any(not row.low_pct <= 0 <= row.high_pct for row in effects(made, launches, PROTOCOL, FULL))
    assert missed <= 14  # 5 % of 120 is 6; 14 or more happens in 0.3 %


def test_sentences() -> None:
    levels = {"baseline": {"mscclpp": "off", "x": "0"}, "a": {"mscclpp": "on", "x": "0"}, "b": {"mscclpp": "on", "x": "1"}}
    rng = np.random.default_rng(1)
    launches = []
    for phase, effect in zip(PHASES, (-0.0315, 0.0), strict=True):
        for index, record in enumerate(
            measured(rng, list(levels), 6, effects={"a": effect, "b": effect}, noise=0.001, phases=(phase,), levels=levels)
        ):
            if phase == PHASES[0]:
                launches.append(record)
            else:
                launches[index] = launches[index].model_copy(update={"phases": (*launches[index].phases, *record.phases)})
    rows = effects(plan(levels, phases=PHASES), launches, PROTOCOL, levels)
    (said,) = effect_sentences(rows, launches, PROTOCOL)  # x=1 has one arm: its own effect, said elsewhere
    assert re.fullmatch(
        r"main effect of mscclpp, over the arms that have it: TPOT 3\.\d % better at one stream \(interval \+[23]\.\d to \+3\.\d\), nothing at "
        r"128 streams",
        said,
    )


def test_wide_interval_is_not_called_nothing() -> None:
    row = Effect(factors=("m",), levels=("on",), phase="decode_c1", metric="tpot_p50_ms", effect_pct=0.1, low_pct=-4, high_pct=4)
    assert "not resolved" in effect_sentences([row], [], PROTOCOL)[0]
