"""The doctor as a whole: its exit code, its JSON, and that a check which breaks does not hide the others."""

import json
from pathlib import Path

import pytest

from runner.actions import doctor
from runner.actions.checks.finding import Finding, fail, ok, warn
from runner.config import Settings
from tests.actions.example import settings_of


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Without the load client's calibration, which drives a server for seconds."""
    monkeypatch.setattr(doctor, "_client", lambda: [ok("load client", "not driven")])
    return settings_of(
        tmp_path, node={"gpus": 0, "capability": 0}, engine={"kind": "simulated"}, execution={"lock_dir": str(tmp_path / "lock")}
    )


def test_every_subject_has_a_line_and_every_warning_a_remedy(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.perform(settings.model_copy(update={"json_output": True}), [])
    report = json.loads(capsys.readouterr().out)
    subjects = {line["check"] for line in report["checks"]}
    assert {
        "gpus",
        "memory",
        "disk",
        "cores",
        "ports",
        "engine",
        "Ray",
        "MLflow store",
        "node lock",
        "leftovers",
        "load client",
    } <= subjects
    assert all(line["remedy"] for line in report["checks"] if line["state"] != "ok")
    assert code == (3 if report["fail"] else 0)
    assert report["ok"] + report["warn"] + report["fail"] == len(report["checks"])


def test_a_fail_ends_with_three_and_warnings_do_not(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda settings: [ok("a", "fine"), warn("b", "hm", "do")])
    assert doctor.perform(settings, []) == 0
    monkeypatch.setattr(doctor, "examine", lambda settings: [ok("a", "fine"), fail("b", "no", "do")])
    assert doctor.perform(settings, []) == 3


def test_a_check_that_breaks_is_a_line_of_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: Settings) -> list[Finding]:
        raise RuntimeError("surprise")

    monkeypatch.setattr(doctor, "_ray", broken)
    found = doctor.examine(settings)
    assert [finding.text for finding in found if finding.check == "Ray"] == ["the check itself broke: RuntimeError: surprise"]
    assert any(finding.check == "leftovers" for finding in found)


def test_text_shows_the_remedy_under_its_line() -> None:
    text = doctor.doctor_text([warn("P2P", "not known", "run it on the host")], colours=False)
    assert text.splitlines() == ["WARN  P2P: not known", "        -> run it on the host", "0 ok, 1 warnings, 0 failures"]
    assert "\x1b[" in doctor.doctor_text([ok("a", "b")], colours=True)
