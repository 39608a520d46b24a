"""Reads a log once: which rule speaks in which line, in which stage of the start, in which traceback."""

import re
from typing import NamedTuple

from runner.engines.diagnose import rules
from runner.engines.diagnose.reading import Line, Trace, read_lines, tracebacks
from runner.engines.diagnose.roots import ROOTS
from runner.engines.diagnose.rules import CONSEQUENCE, ROOT, Rule
from runner.engines.diagnose.symptoms import CONSEQUENCES, SYMPTOMS

MAX_DISTINCT = 8000
_DIGITS = re.compile(r"\d+")


class Hit(NamedTuple):
    """One rule that speaks in one line. `stage` is how far the line's rank (or the server) had come."""

    rule: Rule
    line: Line
    stage: str
    trace: Trace | None


class Scan(NamedTuple):
    """Everything the judge looks at. `ready`, `stop`: line number of the first such line, or None."""

    lines: list[Line]
    hits: list[Hit]
    traces: list[Trace]
    stages: dict[str, str]
    ready: int | None
    served: int | None
    stop: Line | None
    drains: list[int]
    warning: Line | None
    degraded: Line | None
    ignored_imports: list[Line]
    commands: str

    @property
    def has_served(self) -> bool:
        """True once the port was open; of a log whose head was cut off its batches say so."""
        return self.ready is not None or self.served is not None or "batches" in self.stages.values()

    @property
    def stage(self) -> str:
        """The stage in which the slowest rank is ('' when the log shows none)."""
        named = [stage for rank, stage in self.stages.items() if rank.startswith(("TP", "DP", "PP", "rank"))] or list(self.stages.values())
        return min(named, key=lambda stage: rules.STAGE_ORDER[stage], default="")


def scan(text: str) -> Scan:
    """Scans a log. Time grows with the number of distinct lines, not with the length of the log."""
    lines = read_lines(text)
    traces = tracebacks(lines)
    ending = {trace.exception.number: trace for trace in traces if trace.exception is not None}
    stages: dict[str, str] = {}
    hits: list[Hit] = []
    ready = served = None
    stop = warning = degraded = None
    drains: list[int] = []
    ignored: list[Line] = []
    commands: list[str] = []
    for line in _distinct(lines):
        if line.frame or not _may_speak(line.text):
            continue
        stage = _stage_of(line.text)
        if stage:
            stages[line.rank] = "graphs_done" if stage == "graphs" and "100%" in line.text else stage
            if stage == "ready" and ready is None:
                ready = line.number
            if stage == "serving" and served is None:
                served = line.number
        drain = rules.DRAINING.search(line.text)
        if drain:
            drains.append(int(drain[1]))
        if stop is None and rules.STOP_ASKED.search(line.text):
            stop = line
        if degraded is None and rules.DEGRADED.search(line.text):
            degraded = line
        noise = rules.NOISE.search(line.text)
        if noise:
            if "Ignore import error" in line.text:
                ignored.append(line)
            if noise[0].startswith(("server_args=", "ServerArgs(", "$", "python", "sglang", "+", "launch_command")):
                commands.append(line.text)
            elif warning is None and rules.WARNINGS.search(line.text):
                warning = line
            continue
        if warning is None and rules.WARNINGS.search(line.text):
            warning = line
        trace = ending.get(line.number)
        for candidate in _ALL:
            if candidate.pattern.search(line.text) and _frames_agree(candidate, trace):
                hits.append(Hit(candidate, line, stages.get(line.rank) or _furthest(stages), trace))
    return Scan(lines, hits, traces, stages, ready, served, stop, drains, warning, degraded, ignored, "\n".join(commands))


_ALL: tuple[Rule, ...] = (*ROOTS, *SYMPTOMS, *CONSEQUENCES)


def _may_speak(text: str) -> bool:
    lower = text.lower()
    return any(word in lower for word in rules.TRIGGERS)


def _distinct(lines: list[Line]) -> list[Line]:
    """Lines without repetitions that differ in digits only; of too many distinct ones the middle is left out."""
    seen: set[tuple[str, str]] = set()
    kept: list[Line] = []
    for line in lines:
        if not line.frame:
            key = (line.rank, _DIGITS.sub("#", line.text))
            if key in seen and not _repeats_matter(line.text):
                continue
            seen.add(key)
        kept.append(line)
    half = MAX_DISTINCT // 2
    return kept if len(kept) <= MAX_DISTINCT else kept[:half] + kept[-half:]


def _repeats_matter(text: str) -> bool:
    return "Gracefully exiting" in text or "graph begin" in text or "graph end" in text or "Error" in text[:60]


def _stage_of(text: str) -> str:
    for name, pattern in reversed(rules.STAGES):
        if pattern.search(text):
            return name
    return ""


def _furthest(stages: dict[str, str]) -> str:
    return max(stages.values(), key=lambda stage: rules.STAGE_ORDER[stage], default="")


def _frames_agree(candidate: Rule, trace: Trace | None) -> bool:
    if candidate.frames is None:
        return True
    return trace is not None and candidate.frames.search(trace.frames) is not None


def roots(found: Scan) -> list[Hit]:
    """Hits that explain, in order; a line that also tells of a peer's death explains nothing."""
    peers = {hit.line.number for hit in found.hits if hit.rule.role == CONSEQUENCE and hit.rule.kind == "peer"}
    return [hit for hit in found.hits if hit.rule.role == ROOT and not (hit.line.number in peers and hit.rule.kind == "nccl_error")]
