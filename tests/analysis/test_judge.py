"""The decision: every status, the verdicts, and words that match the numbers."""

import json

import numpy as np
import pytest

from runner.analysis.judge import judge
from runner.analysis.noise import noise_floor
from runner.records.decision import ArmResult, Decision
from runner.records.plan import Cell
from runner.records.schema import Evidence, Failure, LaunchRecord
from runner.spec.protocol import Protocol
from tests.analysis.example import PHASES, launch, measured, plan

LEVELS = {"baseline": {"m": "off", "s": "off"}, "a": {"m": "on", "s": "off"}, "b": {"m": "off", "s": "on"}, "ab": {"m": "on", "s": "on"}}
NAMES = tuple(LEVELS)
PROTOCOL = Protocol()
EFFECTS = {"a": -0.031, "b": 0.05, "ab": -0.031 + 0.05}


def arm(decision: Decision, name: str) -> ArmResult:
    return next(result for result in decision.arms if result.name == name)


def study(blocks: int = 3, noise: float = 0.002, seed: int = 1, **extra: object) -> list[LaunchRecord]:
    return measured(np.random.default_rng(seed), NAMES, blocks, effects=EFFECTS, noise=noise, levels=LEVELS, **extra)  # type: ignore[arg-type]


def observed(launches: list[LaunchRecord]) -> list[LaunchRecord]:
    return [
        record.model_copy(
            update={"evidence": tuple(Evidence(factor=f, level=v, grade="observed", proof="line") for f, v in record.levels.items())}
        )
        for record in launches
    ]


def test_better_worse_and_the_sign_of_effect_pct() -> None:
    decision = judge(plan(LEVELS), observed(study()), PROTOCOL)
    better, worse = arm(decision, "a"), arm(decision, "b")
    assert (better.verdict, worse.verdict) == ("BETTER", "WORSE")
    assert better.hypotheses[0].effect_pct == pytest.approx(3.05, abs=0.6)
    assert worse.hypotheses[0].effect_pct == pytest.approx(-5.1, abs=0.6)
    for result in (better.hypotheses[0], worse.hypotheses[0]):
        assert result.low_pct is not None
        assert result.high_pct is not None
        assert result.effect_pct is not None
        assert result.low_pct < result.effect_pct < result.high_pct
        assert result.launches == result.baseline_launches == 3
        assert result.margin_pct == 1.0
    assert decision.recommendation.arm == "a"
    assert better.attributed
    assert decision.recommendation.command == ("serve", "a")
    assert decision.recommendation.env == {"ARM": "a"}


def test_higher_is_better_for_throughput() -> None:
    made = plan({"baseline": {}, "a": {"m": "on"}}, hypotheses=[{"arm": "a", "phase": "decode_c1", "metric": "output_tok_s"}])
    rng = np.random.default_rng(1)
    launches = [
        launch(
            name,
            block,
            position,
            metrics={"decode_c1": {"output_tok_s": 100 * np.exp(0.1 * (name == "a") + 0.002 * rng.standard_normal())}},
        )
        for block in range(4)
        for position, name in enumerate(("baseline", "a"))
    ]
    result = arm(judge(made, launches, PROTOCOL), "a").hypotheses[0]
    assert result.verdict == "BETTER"
    assert result.effect_pct == pytest.approx(10.5, abs=0.5)
    assert result.margin_pct == 3.0


def test_same_inside_the_margin_and_unresolved_says_what_could_be_seen() -> None:
    quiet = judge(plan(LEVELS), measured(np.random.default_rng(2), NAMES, 4, noise=0.002), PROTOCOL)
    assert [result.verdict for result in quiet.arms[1:]] == ["SAME"] * 3
    assert quiet.recommendation.arm == "baseline"
    assert "Keep the baseline" in quiet.recommendation.sentence
    noisy = judge(plan(LEVELS), measured(np.random.default_rng(2), NAMES, 4, noise=0.03), PROTOCOL)
    result = arm(noisy, "a").hypotheses[0]
    assert result.verdict == "UNRESOLVED"
    assert result.could_see_pct is not None
    assert 3 < result.could_see_pct < 20
    assert "unresolved" in " ".join(noisy.recommendation.not_proved)


def test_mixed_when_better_here_and_worse_there() -> None:
    made = plan({"baseline": {}, "a": {"m": "on"}}, phases=PHASES)
    rng = np.random.default_rng(3)
    launches = []
    for block in range(4):
        for position, name in enumerate(("baseline", "a")):
            sign = 0.05 if name == "a" else 0.0
            values = {
                phase: {"tpot_p50_ms": 10 * np.exp(shift + 0.001 * rng.standard_normal())}
                for phase, shift in zip(PHASES, (sign, -sign), strict=True)
            }
            launches.append(launch(name, block, position, metrics=values))
    decision = judge(made, launches, PROTOCOL)
    assert arm(decision, "a").verdict == "MIXED"
    assert decision.recommendation.arm == "baseline"


def test_fewer_than_three_valid_launches_is_unresolved_and_the_arm_invalid() -> None:
    launches = [
        record.model_copy(
            update={"phases": tuple(p.model_copy(update={"valid": False, "invalid_reasons": ("client",)}) for p in record.phases)}
        )
        if record.arm == "a" and record.block == 0
        else record
        for record in study()
    ]
    result = arm(judge(plan(LEVELS), launches, PROTOCOL), "a")
    assert result.status == "INVALID"
    assert result.verdict is None
    assert result.hypotheses[0].verdict == "UNRESOLVED"
    assert result.hypotheses[0].launches == 2
    assert "client" in result.reason


def test_a_block_whose_baseline_failed_is_compared_through_the_others() -> None:
    crash = Failure(kind="crash", confidence=1, retry="once")
    launches = [record for record in study(4, shift=lambda block: 0.3 * block) if not (record.arm == "baseline" and record.block == 1)]
    launches.append(launch("baseline", 1, 0, outcome="failed", failure=crash))
    result = arm(judge(plan(LEVELS), launches, PROTOCOL), "a").hypotheses[0]
    assert result.launches == 4
    assert result.baseline_launches == 3
    assert result.effect_pct == pytest.approx(3.05, abs=0.6)
    assert any("through the other blocks" in note for note in result.notes)


def test_failed_arm_carries_class_and_start_success_with_interval() -> None:
    crash = Failure(kind="out_of_memory", confidence=1, retry="once", line="CUDA out of memory")
    launches = [record for record in study() if record.arm != "b"]
    launches += [launch("b", 0, 3, outcome="failed", failure=crash, attempt=attempt) for attempt in (1, 2)]
    result = arm(judge(plan(LEVELS), launches, PROTOCOL), "b")
    assert (result.status, result.failure_class, result.failed_launches) == ("FAILED", "out_of_memory", 2)
    assert result.start_success == 0
    assert result.start_success_high == pytest.approx(1 - 0.025**0.5, abs=1e-6)
    assert any("out_of_memory" in text for text in judge(plan(LEVELS), launches, PROTOCOL).recommendation.not_testable)


def test_an_arm_that_failed_twice_is_not_recommended_though_better() -> None:
    crash = Failure(kind="crash", confidence=1, retry="once")
    launches = study()
    launches += [launch("a", block, 9, outcome="failed", failure=crash, attempt=5) for block in (0, 1)]
    decision = judge(plan(LEVELS), launches, PROTOCOL)
    assert arm(decision, "a").verdict == "BETTER"
    assert decision.recommendation.arm != "a"
    assert any("not recommended" in note for note in arm(decision, "a").notes)


def test_inert_same_as_and_not_in_the_family() -> None:
    contradicted = Evidence(factor="s", level="on", grade="contradicted", proof="no module")
    launches = [
        record.model_copy(update={"evidence": (contradicted,)}) if record.arm in ("b", "ab") else record
        for record in study(4)
        if record.block == 0 or record.arm not in ("b", "ab")
    ]
    decision = judge(plan(LEVELS), launches, PROTOCOL)
    assert (arm(decision, "b").status, arm(decision, "b").same_as) == ("INERT", "baseline")
    assert (arm(decision, "ab").status, arm(decision, "ab").same_as) == ("INERT", "a")
    assert arm(decision, "a").verdict == "BETTER"


def test_one_arm_without_a_noise_floor_waits_for_a_fourth_block_and_says_so() -> None:
    made = plan({"baseline": {}, "a": {"m": "on"}})
    three = arm(judge(made, measured(np.random.default_rng(1), ["baseline", "a"], 3, effects=EFFECTS), PROTOCOL), "a").hypotheses[0]
    assert three.verdict == "UNRESOLVED"
    assert any("fourth block" in note for note in three.notes)
    four = arm(judge(made, measured(np.random.default_rng(1), ["baseline", "a"], 4, effects=EFFECTS), PROTOCOL), "a").hypotheses[0]
    assert four.verdict == "BETTER"


@pytest.mark.parametrize(("day", "warned"), [(20.0, True), (1.0, False), (0.3, False)])
def test_a_floor_of_a_worse_day_is_told(day: float, warned: bool) -> None:
    made = plan({"baseline": {}, "a": {"m": "on"}, "b": {"m": "off"}})
    launches = measured(np.random.default_rng(1), ["baseline", "a", "b"], 4, noise=0.003)
    floor = noise_floor(measured(np.random.default_rng(2), ["baseline"], 8, noise=0.003 * day, purpose="noise"))
    found = [warning for warning in judge(made, launches, PROTOCOL, noise=floor).warnings if "widens the intervals" in warning]
    assert bool(found) is warned
    assert not warned or found[0].startswith("decode_c1 tpot_p50_ms: launches of this study lie 0.")


def test_a_study_whose_arms_are_all_closed_by_screens_does_not_blame_the_baseline() -> None:
    lost = Evidence(factor="m", level="on", grade="contradicted", proof="no module")
    made = plan({"baseline": {"m": "off"}, "a": {"m": "on"}})
    decision = judge(made, [launch("a", 0, levels={"m": "on"}, evidence=[lost], purpose="screen")], PROTOCOL)
    assert (arm(decision, "a").status, arm(decision, "baseline").status) == ("INERT", "BASELINE")
    assert decision.recommendation.arm == "baseline"
    assert "Keep the baseline: no other arm was left to measure (1 INERT)" in decision.recommendation.sentence
    assert "serve" not in decision.recommendation.next_experiment


def test_inert_takes_conditional_factors_along() -> None:
    levels = {"baseline": {"m": "off"}, "m256": {"m": "on", "bytes": "256KB"}, "m1": {"m": "on", "bytes": "1MB"}}
    lost = Evidence(factor="m", level="on", grade="contradicted", proof="no module")
    launches = [
        record.model_copy(update={"evidence": (lost,)}) if record.arm != "baseline" else record
        for record in measured(np.random.default_rng(1), list(levels), 1, levels=levels)
    ]
    decision = judge(plan(levels), launches, PROTOCOL)
    assert [arm(decision, name).same_as for name in ("m256", "m1")] == ["baseline", "baseline"]


def test_refused_at_start_makes_its_cells_rejected_with_the_sentence() -> None:
    refused = Failure(kind="arguments", confidence=1, refused_at="start", line="unrecognized arguments: --x")
    launches = [record for record in study() if record.arm != "b"]
    launches.append(launch("b", 0, 3, outcome="rejected", failure=refused))
    decision = judge(plan(LEVELS), launches, PROTOCOL)
    assert arm(decision, "b").status == "REJECTED"
    cell = next(cell for cell in decision.cells if cell.levels == LEVELS["b"])
    assert (cell.status, cell.refused_at, cell.sentence) == ("REJECTED", "start", "unrecognized arguments: --x")


def test_rejected_and_duplicate_cells_of_the_plan_are_kept() -> None:
    cells = [
        *plan(LEVELS).cells,
        Cell(levels={"m": "x"}, status="REJECTED", reason="needs dp attention", refused_at="rule"),
        Cell(levels={"m": "y"}, status="DUPLICATE", arm="a", reason="same for this workload"),
    ]
    decision = judge(plan(LEVELS, cells=cells), study(), PROTOCOL)
    assert [cell.status for cell in decision.cells[-2:]] == ["REJECTED", "DUPLICATE"]
    assert any("needs dp attention" in text for text in decision.recommendation.not_testable)


class _Answer:
    def __init__(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason


def test_broken_by_the_guard_is_never_recommended() -> None:
    from runner.records.schema import Fingerprint

    printed = [record.model_copy(update={"fingerprint": Fingerprint(prompts_hash=record.arm)}) for record in study()]

    def guard(own: object, base: object) -> _Answer:
        return _Answer("broken", "shifted") if own[0].prompts_hash == "a" else _Answer("cannot_tell", "dummy weights")  # type: ignore[index]

    decision = judge(plan(LEVELS), printed, PROTOCOL, guard=guard)  # type: ignore[arg-type]
    assert (arm(decision, "a").status, arm(decision, "a").reason) == ("BROKEN", "shifted")
    assert decision.recommendation.arm != "a"
    assert any("cannot tell" in note for note in arm(decision, "b").notes)


def test_only_resolved_is_not_called_the_flags_doing() -> None:
    weak = {"a": [Evidence(factor="m", level="on", grade="resolved", proof="server_info")]}
    decision = judge(plan(LEVELS), observed(study()), PROTOCOL, evidence_override=weak)
    assert arm(decision, "a").verdict == "BETTER"
    assert not arm(decision, "a").attributed
    assert "not proved to be the flag's" in decision.recommendation.sentence


def test_confirmation_in_fresh_blocks() -> None:
    fresh = measured(np.random.default_rng(9), ["baseline", "a"], 2, effects=EFFECTS, noise=0.002, start=3, purpose="confirm")
    confirmed = judge(plan(LEVELS), study() + fresh, PROTOCOL).recommendation
    assert confirmed.arm == "a"
    assert confirmed.confirmed
    assert "Confirmed in 2 fresh blocks" in confirmed.sentence
    gone = measured(np.random.default_rng(9), ["baseline", "a"], 2, effects={}, noise=0.002, start=3, purpose="confirm")
    refuted = judge(plan(LEVELS), study() + gone, PROTOCOL).recommendation
    assert refuted.arm == "baseline"
    assert "did not show it again" in refuted.sentence
    assert not judge(plan(LEVELS), study(), PROTOCOL).recommendation.confirmed


def test_bimodal_node_gives_no_verdict_and_says_so() -> None:
    rng = np.random.default_rng(11)
    history = measured(rng, ["baseline"], 12, noise=0.002, shift=lambda block: 0.182 * (block % 2), purpose="noise")
    equal_pairs = measured(rng, ["baseline", "a"], 3, effects={"a": 0.182}, noise=0.002)
    made = plan({"baseline": {}, "a": {"m": "on"}})
    decision = judge(made, equal_pairs, PROTOCOL, noise=noise_floor(history))
    result = arm(decision, "a").hypotheses[0]
    assert result.verdict == "UNRESOLVED"
    assert any("bimodal" in note for note in result.notes)
    assert any("bimodal" in warning for warning in decision.warnings)
    assert judge(made, equal_pairs, PROTOCOL, looks=(3,)).arms[1].verdict == "WORSE"


def test_one_launch_no_launch_and_ties_do_not_break_anything() -> None:
    assert judge(plan(LEVELS), [], PROTOCOL).recommendation.arm is None
    one = judge(plan(LEVELS), measured(np.random.default_rng(1), NAMES, 1), PROTOCOL)
    assert all(result.status in ("BASELINE", "INVALID") for result in one.arms)
    ties = judge(plan(LEVELS), measured(np.random.default_rng(1), NAMES, 4, noise=0.0, effects={"a": -0.03}), PROTOCOL)
    assert arm(ties, "a").verdict == "BETTER"
    assert arm(ties, "b").verdict == "SAME"


def test_the_decision_is_json_without_nan_and_pure() -> None:
    launches = study(5, noise=0.01)
    first, second = (judge(plan(LEVELS), launches, PROTOCOL).model_dump(mode="json", by_alias=True) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first, allow_nan=False))["schema"] == 1
    assert {"study", "engine", "node", "baseline", "gpu_minutes", "recommendation", "arms", "cells"} <= set(first)
    assert Decision.model_validate(first)


def test_descriptive_metrics_carry_no_verdict() -> None:
    launches = [
        record.model_copy(
            update={
                "phases": tuple(
                    p.model_copy(update={"metrics": {**p.metrics, "output_tok_s": 1000 / p.metrics["tpot_p50_ms"]}}) for p in record.phases
                )
            }
        )
        for record in study()
    ]
    rows = arm(judge(plan(LEVELS), launches, PROTOCOL), "a").descriptive
    assert [row.metric for row in rows] == ["output_tok_s"]
    assert rows[0].verdict == "UNRESOLVED"
    assert rows[0].effect_pct == pytest.approx(3.1, abs=0.6)


def test_a_study_of_one_arm_compares_nothing_and_says_so() -> None:
    made = plan({"baseline": {}})
    launches = [launch for launch in observed(study()) if launch.arm == "baseline"]
    recommendation = judge(made, launches, PROTOCOL).recommendation
    assert recommendation.arm is None and "one arm" in recommendation.sentence and "was not measured" not in recommendation.sentence
    assert "grid" in recommendation.next_experiment


def two_phases(first: float, noise: float, blocks: int = 4) -> list[LaunchRecord]:
    """The arm `a` against the baseline: an effect of `first` (log) at one stream where launches hardly differ, none at 128 where they do."""
    rng = np.random.default_rng(3)
    return [
        launch(
            name,
            block,
            position,
            metrics={
                "decode_c1": {"tpot_p50_ms": 10 * float(np.exp(first * (name == "a") + 0.001 * rng.standard_normal()))},
                "decode_c128": {"tpot_p50_ms": 20 * float(np.exp(noise * rng.standard_normal()))},
            },
        )
        for block in range(blocks)
        for position, name in enumerate(("baseline", "a") if block % 2 else ("a", "baseline"))
    ]


def test_the_next_experiment_could_change_the_answer_and_can_be_paid_for() -> None:
    made = plan({"baseline": {"m": "off"}, "a": {"m": "on"}}, phases=PHASES)
    worse = judge(made, two_phases(0.06, 0.02), PROTOCOL)
    assert (arm(worse, "a").verdict, {item.verdict for item in arm(worse, "a").hypotheses}) == ("WORSE", {"WORSE", "UNRESOLVED"})
    assert "blocks" not in worse.recommendation.next_experiment, "whatever 128 streams say, it will not be recommended"
    loud = judge(made, two_phases(0.0, 0.2), PROTOCOL)
    assert arm(loud, "a").verdict == "UNRESOLVED"
    assert loud.recommendation.next_experiment.startswith("Make launches steadier before more of them: a would need about")
    quiet = judge(made, two_phases(0.0, 0.003), PROTOCOL)
    assert quiet.recommendation.next_experiment.startswith("About ")


@pytest.mark.parametrize(("accepted", "verdict"), [(2.41, "BETTER"), (2.45, "BETTER"), (3.1, "UNRESOLVED"), (None, "BETTER")])
def test_arms_that_accept_other_numbers_of_draft_tokens_are_not_compared(accepted: float | None, verdict: str) -> None:
    def drafted(record: LaunchRecord) -> LaunchRecord:
        length = accepted if record.arm == "a" else 2.4
        phases = tuple(
            phase.model_copy(update={"telemetry": phase.telemetry.model_copy(update={"accept_length": length})}) for phase in record.phases
        )
        return record.model_copy(update={"phases": phases})

    result = arm(judge(plan(LEVELS), [drafted(record) for record in observed(study(blocks=4))], PROTOCOL), "a")
    assert {one.verdict for one in result.hypotheses} == {verdict}
    assert any("tokens accepted a step" in note for one in result.hypotheses for note in one.notes) is (verdict == "UNRESOLVED")
