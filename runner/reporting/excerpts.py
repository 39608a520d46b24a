"""Log excerpts around a line of evidence. Logs may be compressed; they are never read whole into the page."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.records.paths import StudyPaths
from runner.records.schema import Evidence, LaunchRecord

AROUND = 3
LONGEST_LINE = 400


@dataclass(frozen=True)
class Excerpt:
    """Lines of one launch's server log, (number from 1, text, is it the line meant)."""

    launch: str
    lines: tuple[tuple[int, str, bool], ...]


def log_file(study: StudyPaths, record: LaunchRecord) -> Path | None:
    """The server log of a launch, compressed or not; None when it is gone."""
    named = record.artifacts.get("server_log")
    places = [study.folder / named] if named else []
    places.append(study.launch(record.launch).server_log)
    for place in places:
        for path in (place, place.with_name(place.name + ".zst"), place.with_name(place.name + ".gz")):
            if path.is_file():
                return path
    return None


def read_lines(path: Path) -> Iterator[str]:
    """Lines without their ends. Raises OSError."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            yield from (line.rstrip("\n") for line in file)
    elif path.suffix == ".zst":
        import io

        import zstandard

        with open(path, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            yield from (line.rstrip("\n") for line in io.TextIOWrapper(stream, encoding="utf-8", errors="replace"))
    else:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from (line.rstrip("\n") for line in file)


def excerpt_of(study: StudyPaths, launches: Sequence[LaunchRecord], evidence: Evidence) -> Excerpt | None:
    """The surroundings of the evidence's line, in the first of `launches` that recorded this proof; None when it is no log
    line or its log is gone."""
    if evidence.line is None:
        return None
    for record in launches:
        same = any((item.factor, item.proof, item.line) == (evidence.factor, evidence.proof, evidence.line) for item in record.evidence)
        path = log_file(study, record) if same else None
        if path is not None:
            return _around(record.launch, path, evidence.line)
    return None


def failure_excerpt(study: StudyPaths, record: LaunchRecord) -> Excerpt | None:
    """The surroundings of the diagnosed line; the log's end when the line is not found."""
    path = log_file(study, record)
    if path is None or record.failure is None:
        return None
    wanted = record.failure.line.strip()
    number, total = None, 0
    try:
        for total, text in enumerate(read_lines(path), 1):
            if wanted and number is None and wanted in text:
                number = total
    except (OSError, EOFError):
        return None
    return _around(record.launch, path, number if number is not None else max(1, total - AROUND), marked=number is not None)


def _around(launch: str, path: Path, number: int, marked: bool = True) -> Excerpt | None:
    lines = []
    try:
        for at, text in enumerate(read_lines(path), 1):
            if at > number + AROUND:
                break
            if at >= number - AROUND:
                lines.append((at, text[:LONGEST_LINE], marked and at == number))
    except (OSError, EOFError):
        return None
    return Excerpt(launch, tuple(lines)) if lines else None
