"""Which stage of its start a server is in, from its log, and whether it has stood still for too long.

Lines as SGLang 0.5.9 to 0.5.23 print them, on GPUs and on a CPU. With several ranks a stage begins with the first rank that
enters it and never goes back. A deadline counts from the last progress, not from the start: new log text, compilers at work, a
growing compile cache, or weights being read.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.spec.engine import Deadlines

STAGES = ("bind", "distributed", "weights", "kv", "graphs", "warmup", "ready")
"""bind: the engine's imports, until its arguments are printed; distributed: child processes and NCCL; kv: pools; warmup: from the
HTTP port's opening to the engine's own first answer."""

READY_LINE = "The server is fired up and ready to roll!"

# Ordered: a line is matched against the later stages first.
_ENTRY: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("ready", re.compile(re.escape(READY_LINE))),
    ("warmup", re.compile(r"Uvicorn running on|Application startup complete|Started server process \[")),
    ("graphs", re.compile(r"Capture .*(?:cuda|cpu) ?graph.* begin|Capture cuda graph bs|Capturing batches", re.IGNORECASE)),
    ("kv", re.compile(r"KV Cache is allocated|Memory pool end|max_total_num_tokens=\d+, chunked_prefill_size")),
    ("weights", re.compile(r"Load weight begin|Loading safetensors checkpoint shards|Multi-thread loading shards")),
    ("distributed", re.compile(r"server_args=|Init torch distributed begin|Init parallel begin")),
)
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*")
_DYING = re.compile(
    r"Received sigquit from a child process|SIGQUIT received\.|Scheduler hit an exception|Initialization failed\. warmup error|"
    r"kill_process_tree called|error while attempting to bind on address|scheduler died during initialization|scheduler is dead"
)

Activity = Literal["none", "compiling", "reading"]


@dataclass(frozen=True)
class Overdue:
    """Why a start was given up: the stage, seconds without progress, and the limit with its name."""

    stage: str
    silent_for_s: float
    limit_s: float
    limit_name: str
    compiling: bool

    def __str__(self) -> str:
        return f"no progress for {self.silent_for_s:.0f} s in stage {self.stage} (deadlines.{self.limit_name}={self.limit_s:g})"


class LogTail:
    """Reads a growing file from where it stopped. Keeps at most `limit` characters of its end for a diagnosis."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._rest = b""

    def new_lines(self) -> tuple[list[str], bool]:
        """Whole lines since the last call (a progress bar's carriage return ends a line too), and whether the file grew."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return [], False
        if not data:
            return [], False
        self.offset += len(data)
        pieces = re.split(rb"[\r\n]+", self._rest + data)
        self._rest = pieces.pop()
        return [piece.decode("utf-8", "replace") for piece in pieces if piece], True

    def whole(self, limit: int = 4_000_000) -> str:
        """The log's text; of a longer one its first tenth and its end, since causes stand early and deaths late."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return ""
        if len(data) > limit:
            data = data[: limit // 10] + b"\n[... cut ...]\n" + data[-(limit - limit // 10) :]
        return data.decode("utf-8", "replace")


class StageTracker:
    """Follows one start. `clock` gives monotonic seconds."""

    def __init__(self, deadlines: Deadlines, clock: Callable[[], float] = time.monotonic) -> None:
        self.deadlines, self.clock = deadlines, clock
        self.began = clock()
        self.entered: dict[str, float] = {"bind": self.began}
        self.stage = "bind"
        self.dying = False
        self._progress = self.began
        self._active = self.began
        self._compiling_at: float | None = None
        self._last_texts: set[str] = set()

    def feed(self, lines: list[str]) -> None:
        """Takes new log lines. The same text again (a heartbeat) is no progress."""
        now = self.clock()
        for line in lines:
            text = _STAMP.sub("", line).strip()
            if text and text not in self._last_texts:
                self._progress = self._active = now
                if len(self._last_texts) > 5000:
                    self._last_texts.clear()
                self._last_texts.add(text)
            self.dying = self.dying or bool(_DYING.search(line))
            for stage, pattern in _ENTRY:
                if pattern.search(line):
                    self._enter(stage, now)
                    break

    def _enter(self, stage: str, now: float) -> None:
        if STAGES.index(stage) > STAGES.index(self.stage):
            self.stage = stage
            self.entered[stage] = now
            self._progress = self._active = now

    def note(self, activity: Activity) -> None:
        """What was seen of a silent server: compilers or a growing cache, or weights being read."""
        now = self.clock()
        if activity == "compiling":
            self._active = self._compiling_at = now
        elif activity == "reading":
            self._active = now
            if self.stage in ("bind", "distributed", "weights"):
                self._progress = now

    @property
    def silent_for(self) -> float:
        """Seconds since the last new log text."""
        return self.clock() - self._progress

    @property
    def compiling(self) -> bool:
        """True when compile activity was seen within the last 10 seconds."""
        return self._compiling_at is not None and self.clock() - self._compiling_at < 10

    def stage_limit(self) -> tuple[str, float]:
        """Name and seconds of the deadline of this stage."""
        name = {"kv": "weights_s", "ready": "warmup_s"}.get(self.stage, f"{self.stage}_s")
        return name, float(getattr(self.deadlines, name))

    def overdue(self) -> Overdue | None:
        """The deadline that has passed, if any."""
        now = self.clock()
        name, limit = self.stage_limit()
        quiet_name, quiet = min((name, limit), ("silent_s", self.deadlines.silent_s), key=lambda pair: pair[1])
        if now - self._active > quiet:
            return Overdue(self.stage, now - self._active, quiet, quiet_name, False)
        slow_name, slow = max((name, limit), ("compile_s", self.deadlines.compile_s), key=lambda pair: pair[1])
        if now - self._progress > slow:
            return Overdue(self.stage, now - self._progress, slow, slow_name, self.compiling)
        return None

    def durations(self) -> dict[str, float]:
        """Seconds spent in each stage that was left or is being lived through, in order."""
        names = [stage for stage in STAGES if stage in self.entered]
        ends = [self.entered[name] for name in names[1:]] + [self.clock()]
        return {name: round(end - self.entered[name], 4) for name, end in zip(names, ends, strict=True) if name != "ready"}
