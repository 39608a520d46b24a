"""Passes over one study until MLflow holds it. A server that is down, slow or answers 500 costs retries with growing pauses."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.errors import UserError
from runner.records.paths import StudyPaths
from runner.tracking.mlflow_tracker import TrackReport
from runner.tracking.outbox import read_report, write_report

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
LOOK_EVERY_S = 0.5
SHORTEST_REST_S = 2.0
REST_SHARE = 20  # a pass may take a twentieth of the time: we live on the node that is being measured


@dataclass
class Follower:
    """Passes over one study until it is finished and sent. `track` is one pass; `sleep` waits."""

    study: StudyPaths
    track: Callable[[], TrackReport]
    driven: bool
    finish: threading.Event = field(default_factory=threading.Event)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = print
    passes: int = 0

    def run(self) -> TrackReport:
        """Returns the report of the last pass. A UserError (wrong URI, store of another version) ends it at once: waiting
        would not help."""
        pause, seen, rest_until = FIRST_PAUSE_S, None, self.clock()
        report = TrackReport(uri="")
        while True:
            last, mark = self.finish.is_set(), self._mark()
            if (mark == seen or self.clock() < rest_until) and not last:
                self.sleep(LOOK_EVERY_S)
                continue
            began = self.clock()
            report = self._pass()
            if report.error is None:
                rest_until = self.clock() + max(SHORTEST_REST_S, REST_SHARE * (self.clock() - began))
                pause, seen = FIRST_PAUSE_S, mark
                if report.complete and (last or (not self.driven and self._study_finished())):
                    return report
                if last:
                    self._wait(pause)
                continue
            if report.error.startswith("error:"):
                return report
            self._wait(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    def _pass(self) -> TrackReport:
        self.passes += 1
        try:
            report = self.track()
        except UserError as error:
            report = TrackReport(uri="", study=self.study.name, error=f"error: {error}")
        except Exception as error:  # noqa: BLE001 - whatever the server or the network does, the records wait and are sent later
            report = TrackReport(uri="", study=self.study.name, error=brief(error))
        if report.error:
            self.say(f"pass {self.passes}: {report.error}")
            previous = read_report(self.study)
            if previous is not None:
                report = previous.model_copy(update={"error": report.error})
        with contextlib.suppress(OSError):  # a full or read-only disk; the log has the error
            write_report(self.study, report)
        return report

    def _wait(self, pause: float) -> None:
        """The pause after an error; `finish` cuts a long one short, since then somebody is waiting."""
        until = self.clock() + pause
        asked = self.finish.is_set()
        while self.clock() < until:
            self.sleep(min(LOOK_EVERY_S, pause))
            if self.finish.is_set() and not asked:
                return

    def _mark(self) -> tuple[tuple[int, int], ...]:
        """Changes when there is something new to send."""
        marks = []
        for path in (self.study.journal, self.study.decision, self.study.report, self.study.plan):
            try:
                found = path.stat()
                marks.append((found.st_size, found.st_mtime_ns))
            except OSError:
                marks.append((0, 0))
        return tuple(marks)

    def _study_finished(self) -> bool:
        try:
            with open(self.study.journal, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
                return b'"kind":"study_finished"' in file.read().replace(b": ", b":")
        except OSError:
            return False


def brief(error: Exception) -> str:
    """The cause in one line: the layers of HTTP libraries say the same thing three times."""
    text = " ".join(str(error).split())
    cause = re.search(r"\[Errno \d+\] [\w ]+|Read timed out|Name or service not known|error code \d{3}", text)
    called = re.search(r"(?:request to|to endpoint) (\S+)", text)
    if cause and called:
        return f"{cause.group(0)} at {called.group(1).rstrip(',.')}"
    return f"{type(error).__name__}: {text[:200]}"
