"""Moving the baseline: what changes is shown, what cannot be accepted is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.actions.accept import perform
from runner.actions.history import load_history
from runner.analysis.nightly import baseline_of
from runner.errors import UserError
from runner.records.night import Night
from runner.records.paths import RootPaths
from tests.actions.example import settings_of
from tests.actions.night_example import nights, study_of, with_history


def slower(night: Night, factor: float, **changes: Any) -> Night:
    values = {name: tuple(value * factor for value in seen) for name, seen in night.values.items()}
    return night.model_copy(update={"study": "slower", "at": 1.0, "values": values, "outcome": "regression", **changes})


def history_with_a_regression(root: Path, **changes: Any) -> None:
    past = nights(8)
    with_history(root, [*past, slower(past[-1], 1.05, identity={"experiment": "small", "driver": "590"}, **changes)])


def test_the_baseline_begins_with_the_accepted_night(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history_with_a_regression(tmp_path)
    assert perform(settings_of(tmp_path, study={"name": "slower"}, json=True), []) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["baseline_before"] == [f"night-{index}" for index in range(7)] and result["baseline_after"] == ["slower"]
    assert result["changed"] == {"driver": ["580", "590"]}
    moved = next(row for row in result["moved"] if row["arm"] == "fast")
    assert moved["change_pct"] == pytest.approx(-5.0, abs=0.5) and moved["after"] > moved["before"]
    after = load_history(RootPaths(tmp_path), "eight", simulated=True)
    assert [night.study for night in baseline_of(after.nights)] == ["slower"]


def test_latest_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history_with_a_regression(tmp_path)
    perform(settings_of(tmp_path, study={"name": "latest"}), [])
    text = capsys.readouterr().out
    assert text.startswith("SIMULATED node eight: the baseline begins with slower") and "driver: 580 -> 590" in text
    assert "only learn" in text


def test_the_studys_own_plan_says_which_node(tmp_path: Path) -> None:
    past = nights(3)
    with_history(tmp_path, past)
    study_of(tmp_path, "night-1", node="eight").close()
    elsewhere = settings_of(tmp_path, node={"name": "somewhere-else"}, study={"name": "night-1"})
    assert perform(elsewhere, []) == 0
    assert load_history(RootPaths(tmp_path), "eight", True).nights[1].accepted


def test_what_cannot_be_accepted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"study\.name"):
        perform(settings_of(tmp_path), [])
    with pytest.raises(UserError, match="no nights yet"):
        perform(settings_of(tmp_path, study={"name": "latest"}), [])
    history_with_a_regression(tmp_path, values={})
    with pytest.raises(UserError, match="night-3"):
        perform(settings_of(tmp_path, study={"name": "night-99"}), [])
    with pytest.raises(UserError, match="measured nothing"):
        perform(settings_of(tmp_path, study={"name": "latest"}), [])
    assert not any(night.accepted for night in load_history(RootPaths(tmp_path), "eight", True).nights)
