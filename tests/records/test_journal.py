"""The journal loses nothing that it has said, and says what it lost."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UserError
from runner.records.journal import Journal, launches, read_journal
from tests.records.example import launch_record


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", clock=lambda: 12.5)
    journal.append("study_started", study="s")
    journal.append("event", text="hello")
    journal.close()
    entries = read_journal(tmp_path / "journal.jsonl")
    assert [entry["kind"] for entry in entries] == ["study_started", "event"]
    assert [entry["seq"] for entry in entries] == [0, 1]
    assert entries[0]["t"] == 12.5 and entries[0]["schema"] == 1


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_torn_last_line_is_cut_and_reported(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for number in range(3):
        journal.append("event", number=number)
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path)
    assert again.torn is not None and again.torn.startswith('{"schema":1,"seq":2')
    again.append("event", number=99)
    again.close()
    assert [entry["number"] for entry in read_journal(path)] == [0, 1, 99]
    assert [entry["seq"] for entry in read_journal(path)] == [0, 1, 2]


def test_a_damaged_middle_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"kind": "event"}\n{"kind": oops}\n{"kind": "event"}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        read_journal(path)


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("event", number=0)
    real = journal._file

    class Full:
        """Takes half of what it is given, then says the disk is full."""

        def __init__(self) -> None:
            self.calls = 0

        def write(self, data: bytes) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real.write(data[: len(data) // 2]) or 0

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    journal._file = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        journal.append("event", number=1)
    journal._file = real
    journal.append("event", number=2)
    journal.close()
    assert [entry["number"] for entry in read_journal(path)] == [0, 2]


def test_launches_are_validated_and_count_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    record = launch_record()
    for _ in range(2):
        journal.append("launch_finished", launch=record.model_dump(mode="json", by_alias=True))
    journal.close()
    assert launches(read_journal(tmp_path / "journal.jsonl")) == [record]


def test_a_record_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    content = launch_record().model_dump(mode="json", by_alias=True) | {"surprise": 1}
    with pytest.raises(ValueError, match="surprise"):
        launches([{"kind": "launch_finished", "launch": content}])


def test_not_a_number_never_reaches_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.append("event", value=float("nan"))
    journal.close()
    assert read_journal(tmp_path / "journal.jsonl") == []


def test_the_schema_document_is_the_models(tmp_path: Path) -> None:
    from runner.records.schema import json_schema

    schema = json_schema()
    assert {"schema", "study", "launch", "arm", "block", "outcome", "evidence", "phases", "engine"} <= set(schema["properties"])
    assert json.dumps(schema)
