"""The records of `make bench-client`: a head (machine, versions, settings), then one JSON line a step, fsynced as it ends."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Records:
    """`open` decides what is left to do; a line that was cut by a crash is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, head: Mapping[str, Any], steps: Sequence[Any], fresh: bool) -> list[Any]:
        """The steps without a good row. Records of another machine, other versions or other settings are not gone on with: they are
        replaced, as with `fresh`; a step that failed is taken again. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if fresh or self._lines()[:1] != [dict(head)]:
            self._write([dict(head)])
        kept = [row for row in self.rows() if "failed" not in row]
        self._write([self.head(), *kept])
        done = {(row["client"], row["level"], row["repeat"]) for row in kept}
        return [step for step in steps if (step.client, step.level, step.repeat) not in done]

    def append(self, row: Mapping[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def head(self) -> dict[str, Any]:
        """Raises SystemExit when there are no records."""
        lines = self._lines()
        if not lines:
            raise SystemExit(f"there are no records at {self._path}: run `make bench-client`")
        return lines[0]

    def rows(self) -> list[dict[str, Any]]:
        return self._lines()[1:]

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        found = []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        temporary.replace(self._path)
