"""A server log as lines that can be compared: prefixes taken off, ranks named, usage dumps, frames and known noise marked."""

import re
from collections.abc import Iterator
from typing import NamedTuple

HEAD_BYTES = 1_500_000
TAIL_BYTES = 2_500_000
WINDOW = 200_000
KEPT_BATCHES = 3

# What makes a place in the middle of a very long log worth reading.
_ALARMS = (
    "Traceback (most recent call last)",
    "hit an exception",
    "CUDA error",
    "out of memory",
    "Health check failed",
    "watchdog timeout",
    "SIGTERM received",
    "crashed with exit code",
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIXES = (
    re.compile(r"\((?:[\w:.\-]+ )?pid=\d+(?:, ip=[\w.:]+)?\) ?"),
    re.compile(r"[\w.\-]{1,60}\s{0,20}\| "),
    re.compile(r"[│┃] ?"),
    re.compile(
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[ \t](?:(?:stdout|stderr) [FP] )?(?:\| *\w+ *\| [\w.]+ *\| | +(?:INFO|WARN|ERROR|DEBUG) [\w.]+: )?"
    ),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:\S+ \S+(?:\[\d+\])?: )?"),
    re.compile(r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+(?::\d+)?\]? ?"),
)
_STAMP = re.compile(
    r"\[(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?P<rank>(?: [A-Z]{2}\d+)*)\](?: (?:INFO|WARNING|ERROR|CRITICAL|DEBUG)(?= ))? ?"
)
_TORCH_RANK = re.compile(r"\[(?P<rank>rank\d+)\]: ?")
_USAGE_END = re.compile(r"^\S.*?: error: ")
_USAGE_HEADS = ("usage: ", "options:", "optional arguments:", "positional arguments:")
_FRAME = re.compile(r"^\s+\S")
_FRAME_OF_FILE = re.compile(r'^\s+File "[^"]+", line \d+, in ')
_NOT_FRAME = re.compile(r"^\s+(?:what\(\): |(?:tvm|torch|RuntimeError|ValueError|AssertionError|Exception|OSError|ImportError)\S*:)")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w]*\.)*[A-Za-z_]\w*(?:Error|Exception|Failed|Exit|Interrupt|Timeout|Failure|OutOfResources)\b(?:: |:?$)"
)
_TRACEBACK = "Traceback (most recent call last)"


class Line(NamedTuple):
    """`number` counts from 1; `text` has no prefix; `raw` is what was logged; `frame` is the text of a traceback's frame."""

    number: int
    text: str
    raw: str
    rank: str
    frame: bool


class Trace(NamedTuple):
    """One traceback: where it starts and ends (line numbers), its frames as one text, its exception."""

    start: int
    end: int
    frames: str
    exception: Line | None
    chained: bool


def excerpt(text: str) -> str:
    """The part of a very long log that is read: its head, its tail and the surroundings of alarming words between them.

    Newlines stand for what is left out, so that line numbers stay true.
    """
    if len(text) <= HEAD_BYTES + TAIL_BYTES:
        return text
    tail_from = len(text) - TAIL_BYTES
    pieces, read_to = [text[:HEAD_BYTES]], HEAD_BYTES
    for place in sorted({found for word in _ALARMS if (found := text.find(word, HEAD_BYTES, tail_from)) >= 0}):
        start, end = max(read_to, place - WINDOW // 4), min(tail_from, place + WINDOW)
        if end > start:
            pieces += ["\n" * text.count("\n", read_to, start), text[start:end]]
            read_to = end
    pieces += ["\n" * text.count("\n", read_to, tail_from), text[tail_from:]]
    return "".join(pieces)


def read_lines(text: str) -> list[Line]:
    """Every line that says something: empty lines, running batches and access lines are left out, usage dumps cut."""
    lines = list(_lines(excerpt(text)))
    return [line._replace(number=number) for number, line in enumerate(reversed(lines), 1)] if _newest_first(lines) else lines


def _newest_first(lines: list[Line]) -> bool:
    """True for what a log viewer shows with the newest line on top: frames stand before the head of their traceback, never after it."""
    heads = [place for place, line in enumerate(lines) if _TRACEBACK in line.text]
    after = any(lines[place + 1].frame for place in heads if place + 1 < len(lines))
    return bool(heads) and not after and all(place > 0 and lines[place - 1].frame for place in heads)


def _lines(text: str) -> Iterator[Line]:
    in_usage, batches = False, 0
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw or '" 200 OK' in raw:
            continue
        if " batch, #" in raw or " batch. #" in raw:
            batches += 1
            if batches > KEPT_BATCHES:
                continue
        if "\r" in raw:
            raw = raw.rstrip("\r").rpartition("\r")[2]
        if "\x1b" in raw:
            raw = _ANSI.sub("", raw)
        body, rank = strip_prefixes(raw.rstrip(" │┃"))
        if not body.strip():
            continue
        if body.startswith("usage: "):
            in_usage = True
        if in_usage:
            in_usage = not _USAGE_END.match(body) and (body[0].isspace() or body.startswith(_USAGE_HEADS))
            if in_usage:
                continue
        frame = body[0].isspace() and bool(_FRAME.match(body)) and not _NOT_FRAME.match(body)
        yield Line(number, body.rstrip(), raw.strip(), rank, frame)


def strip_prefixes(raw: str) -> tuple[str, str]:
    """The message without what collectors and loggers put in front of it, and the rank that they name ('' when none)."""
    rank, at = "", 0
    for _ in range(6):
        stamp = _STAMP.match(raw, at)
        if stamp:
            rank = stamp["rank"].strip() or rank
            at = stamp.end()
            continue
        torch = _TORCH_RANK.match(raw, at)
        if torch:
            rank = torch["rank"]
            at = torch.end()
            continue
        for prefix in _PREFIXES:
            match = prefix.match(raw, at)
            if match and match.end() > at:
                at = match.end()
                break
        else:
            break
    return raw[at:], rank


def tracebacks(lines: list[Line]) -> list[Trace]:
    """All tracebacks in order. Interleaved ranks are taken apart where every line names its rank."""
    found: list[Trace] = []
    open_traces: dict[str, tuple[int, list[str], bool]] = {}
    chained = False
    for line in lines:
        if _TRACEBACK in line.text:
            if line.rank in open_traces:
                start, frames, was_chained = open_traces[line.rank]
                found.append(Trace(start, line.number, "\n".join(frames), None, was_chained))
            open_traces[line.rank] = (line.number, [], chained)
            chained = False
        elif line.text.startswith(("During handling of the above", "The above exception was the direct")):
            chained = True
        elif line.frame:
            # An unprefixed frame belongs to the traceback that was opened last.
            key = line.rank if line.rank in open_traces else next(reversed(open_traces), None)
            if key is not None:
                open_traces[key][1].append(line.text)
            elif _FRAME_OF_FILE.match(line.text):
                # The head of this traceback was cut off with the head of the log.
                open_traces[line.rank] = (line.number, [line.text], chained)
                chained = False
        elif open_traces and is_exception(line.text):
            key = line.rank if line.rank in open_traces else next(reversed(open_traces))
            start, frames, was_chained = open_traces.pop(key)
            found.append(Trace(start, line.number, "\n".join(frames), line, was_chained))
    for start, frames, was_chained in open_traces.values():
        found.append(Trace(start, lines[-1].number, "\n".join(frames), None, was_chained))
    return sorted(found, key=lambda trace: trace.start)


def is_exception(text: str) -> bool:
    """True for the last line of a traceback: `ValueError: ...`, `torch.OutOfMemoryError: ...`."""
    return bool(_EXCEPTION.match(text))
