"""Actions that read files refuse what is not text or not records."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from runner.actions import analyze
from runner.config import Settings, config_folder, settings_from
from runner.engines.evidence.action import evidence_files
from runner.errors import UserError


def settings(*words: str) -> Settings:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return settings_from(compose("config", list(words)), choices_made={"factor": "mscclpp"})


def test_records_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\x80\xff\x00binary")
    with pytest.raises(UserError, match="cannot be read as text"):
        analyze.perform(settings(f"records={path}"), [])
    with pytest.raises(UserError, match=r"holds no journal\.jsonl"):
        analyze.perform(settings(f"records={tmp_path}"), [])


def test_a_binary_log_grades_nothing(tmp_path: Path) -> None:
    factor = settings("factor=mscclpp").factor
    assert factor is not None
    path = tmp_path / "server.log"
    path.write_bytes(b"\x00\x01\xffcore")
    with pytest.raises(UserError, match="binary file"):
        evidence_files(factor, "on", path, None)
    words = tmp_path / "probe.json"
    words.write_text("not json", encoding="utf-8")
    with pytest.raises(UserError, match="probe's report"):
        evidence_files(factor, "on", None, None, words)
