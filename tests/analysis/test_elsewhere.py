"""Records from elsewhere are judged by the same code; bad lines are named."""

import json
from pathlib import Path

import numpy as np
import pytest

from runner.analysis.elsewhere import analyze_records
from runner.errors import UserError
from runner.records.journal import Journal
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol
from tests.analysis.example import launch, measured

PROTOCOL = Protocol()


def text(launches: list[LaunchRecord]) -> str:
    return "\n".join(record.model_dump_json(by_alias=True) for record in launches)


def launches(blocks: int = 4, **extra: object) -> list[LaunchRecord]:
    return measured(np.random.default_rng(1), ["baseline", "a"], blocks, effects={"a": -0.03}, **extra)  # type: ignore[arg-type]


def test_json_lines() -> None:
    decision = analyze_records(text(launches()), PROTOCOL)
    assert decision.baseline == "baseline"
    assert decision.arms[1].verdict == "BETTER"
    assert decision.method["looks"] == [4]
    assert decision.method["nominal_levels"] == [pytest.approx(0.05)]


def test_journal_of_a_study(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("study_started", study="s")
    for record in launches():
        journal.append("launch_finished", launch_id=record.launch, launch=record.model_dump(mode="json", by_alias=True))
    journal.close()
    assert analyze_records((tmp_path / "journal.jsonl").read_text(), PROTOCOL).arms[1].verdict == "BETTER"


def test_three_blocks_are_judged_in_one_look() -> None:
    assert analyze_records(text(launches(3)), PROTOCOL).arms[1].verdict == "BETTER"


def test_two_blocks_are_unresolved() -> None:
    hypothesis = analyze_records(text(launches(2)), PROTOCOL).arms[1].hypotheses[0]
    assert hypothesis.verdict == "UNRESOLVED"


def test_launches_without_blocks_are_paired_by_order() -> None:
    flat = [record.model_copy(update={"block": 0}) for record in launches()]
    decision = analyze_records(text(flat), PROTOCOL)
    assert decision.arms[1].verdict == "BETTER"
    assert any("k-th launches" in warning for warning in decision.warnings)


def test_the_baseline_is_named_or_guessed() -> None:
    renamed = [record.model_copy(update={"arm": {"baseline": "plain"}.get(record.arm, record.arm)}) for record in launches()]
    guessed = analyze_records(text(renamed), PROTOCOL)
    assert guessed.baseline == "plain"
    assert any("no arm is called baseline" in warning for warning in guessed.warnings)
    assert analyze_records(text(renamed), PROTOCOL, baseline="a").arms[1].verdict == "WORSE"
    with pytest.raises(UserError, match="plain"):
        analyze_records(text(renamed), PROTOCOL, baseline="zzz")


def test_noise_launches_in_the_file_are_the_noise_floor() -> None:
    history = measured(
        np.random.default_rng(5), ["baseline"], 12, noise=0.002, shift=lambda block: 0.182 * (block % 2), purpose="noise", start=100
    )
    decision = analyze_records(text(history + launches()), PROTOCOL)
    assert decision.noise["floor"]
    assert decision.arms[1].hypotheses[0].verdict == "UNRESOLVED"
    assert any("bimodal" in warning for warning in decision.warnings)


def test_wrong_lines_are_named_and_nothing_is_judged() -> None:
    good = text(launches()).splitlines()
    broken = json.loads(good[1])
    del broken["arm"]
    with pytest.raises(UserError, match=r"line 2: arm: Field required(.|\n)*line 3: not a launch record"):
        analyze_records([good[0], json.dumps(broken), "{oops", *good[3:]], PROTOCOL)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_nothing_to_judge(content: str) -> None:
    with pytest.raises(UserError, match="no measured launch"):
        analyze_records(content, PROTOCOL)


def test_simulated_and_real_are_never_pooled() -> None:
    mixed = launches()
    real = mixed[0].engine.model_copy(update={"simulated": False})
    with pytest.raises(UserError, match="never pooled"):
        analyze_records(text([mixed[0].model_copy(update={"engine": real}), *mixed[1:]]), PROTOCOL)


def test_mixed_builds_are_said() -> None:
    mixed = launches()
    other = mixed[0].engine.model_copy(update={"build": "c"})
    decision = analyze_records(text([mixed[0].model_copy(update={"engine": other}), *mixed[1:]]), PROTOCOL)
    assert any("engine builds" in warning for warning in decision.warnings)


def test_failed_launches_count_for_start_success_only() -> None:
    failed = [launch("a", 9, 0, outcome="failed")]
    arm = analyze_records(text(launches() + failed), PROTOCOL).arms[1]
    assert (arm.launches, arm.failed_launches) == (4, 1)
    assert arm.start_success == pytest.approx(0.8)
