"""The file by which a worker hands its requests over: one JSON line of rows, then two blocks of int64 (times, tokens)."""

import json
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One request, read. Times are monotonic ns, 0 where it never happened. `times` and `tokens` as in streams.Stream."""

    index: int
    worker: int
    scheduled: int
    due: int
    sent: int
    ended: int
    status: int
    outcome: str
    error: str
    finish_reason: str
    asked_input: int
    asked_output: int
    prompt_tokens: int
    cached_tokens: int
    retractions: int
    counted: bool
    retried: bool
    group: int
    times: list[int]
    tokens: list[int]


SCALARS = tuple(name for name in Row.__dataclass_fields__ if name not in ("times", "tokens"))


def write_rows(path: Path, rows: list[Row]) -> None:
    """Atomic. Raises OSError."""
    head = [[getattr(row, name) for name in SCALARS] + [len(row.times)] for row in rows]
    times, tokens = array("q"), array("q")
    for row in rows:
        times.extend(row.times)
        tokens.extend(row.tokens)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(json.dumps(head, separators=(",", ":")).encode() + b"\n")
        times.tofile(file)
        tokens.tofile(file)
    os.replace(temporary, path)


def read_rows(path: Path) -> list[Row]:
    """Raises ValueError for a file of another shape."""
    with open(path, "rb") as file:
        head: list[list[Any]] = json.loads(file.readline())
        blocks = array("q")
        blocks.frombytes(file.read())
    total = sum(values[-1] for values in head)
    if len(blocks) != 2 * total:
        raise ValueError(f"{path} has {len(blocks)} numbers, {2 * total} were announced")
    rows, at = [], 0
    for *scalars, count in head:
        times = blocks[at : at + count].tolist()
        tokens = blocks[total + at : total + at + count].tolist()
        values: list[Any] = [*scalars, times, tokens]
        rows.append(Row(*values))
        at += count
    return rows
