"""The journal of a study: append-only JSON lines. What is believed later is on disk before anything is shown.

A line is `{"schema": 1, "seq": n, "t": unix seconds, "kind": ..., ...}`. Only the last line can be torn (the driver died
while writing); it is cut off and reported when the journal is opened for appending. `t` never runs backwards (clock.py).
Kinds: study_started, launch_started, phase_finished, launch_finished, arm_closed, block_finished, event, decision, study_finished."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.records.clock import SteadyClock
from runner.records.schema import SCHEMA_VERSION, LaunchRecord


class Journal:
    """Appends to one journal. One writer at a time (the study's driver lock sees to that)."""

    def __init__(self, path: Path, clock: Callable[[], float] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.torn = _cut_torn_line(path)
        self._sequence, self.last_time = 0, 0.0
        if path.exists():
            last = b""
            for line in _lines(path):
                self._sequence, last = self._sequence + 1, line
            self.last_time = _time_of(last)
        self.clock = SteadyClock(not_before=self.last_time) if clock is None else clock
        self._file = open(path, "ab", buffering=0)

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Writes one line and waits until it is on disk. Raises OSError; then nothing of the line stays."""
        line = {"schema": SCHEMA_VERSION, "seq": self._sequence, "t": self.clock(), "kind": kind, **fields}
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        start = self._file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
            os.fdatasync(self._file.fileno())
        except OSError:
            self._file.truncate(start)
            raise
        self._sequence += 1
        return line

    def close(self) -> None:
        self._file.close()


def _time_of(line: bytes) -> float:
    """`t` of a line; 0.0 where it has none that can be read (read_journal says what is wrong with it)."""
    try:
        return float(json.loads(line)["t"])
    except (ValueError, KeyError, TypeError):
        return 0.0


def _cut_torn_line(path: Path) -> str | None:
    """Removes an unfinished last line; returns its text (for the report), or None."""
    if not path.exists():
        return None
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return None
    keep = data.rfind(b"\n") + 1
    with open(path, "r+b") as file:
        file.truncate(keep)
        os.fsync(file.fileno())
    return data[keep:].decode(errors="replace")


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def each_entry(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines one by one. Raises UserError naming the line when one is not JSON (records were edited or the disk is bad)."""
    for number, line in enumerate(_lines(path), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON ({error}); restore the file or move the study away") from None


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines. Raises UserError as `each_entry`."""
    return list(each_entry(path))


def launches(entries: list[dict[str, Any]]) -> list[LaunchRecord]:
    """The finished launches of a journal in time order, validated. A launch id counts once (the last word wins)."""
    found: dict[str, LaunchRecord] = {}
    for entry in entries:
        if entry.get("kind") == "launch_finished":
            record = LaunchRecord.model_validate(entry["launch"])
            found[record.launch] = record
    return list(found.values())
