"""The tracking process: `python -m runner.tracking.process STUDY_FOLDER --root ROOT` follows a study and feeds MLflow.

It reads records and writes MLflow; it never writes records. A server that is down, slow or answers 500 costs it retries
with growing pauses, and nobody else anything."""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from runner.errors import UserError
from runner.records.paths import RootPaths, StudyPaths
from runner.spec.study import TrackingSpec
from runner.tracking.mlflow_tracker import TrackReport, track_study
from runner.tracking.outbox import read_report, write_report

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
LOOK_EVERY_S = 0.5


@dataclass
class Follower:
    """Passes over one study until it is finished and sent. `track` is one pass; `sleep` waits, waking early for `finish`."""

    study: StudyPaths
    track: Callable[[], TrackReport]
    driven: bool
    finish: threading.Event = field(default_factory=threading.Event)
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = print
    passes: int = 0

    def run(self) -> TrackReport:
        """Returns the report of the last pass. A UserError (wrong URI, store of another version) ends it at once: waiting
        would not help."""
        pause, seen = FIRST_PAUSE_S, None
        report = TrackReport(uri="")
        while True:
            last, mark = self.finish.is_set(), self._mark()
            if mark == seen and not last:
                self.sleep(LOOK_EVERY_S)
                continue
            report = self._pass()
            if report.error is None:
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
            report = TrackReport(uri="", error=f"error: {error}")
        except Exception as error:  # noqa: BLE001 - whatever the server or the network does, the records wait and are sent later
            report = TrackReport(uri="", error=_brief(error))
        if report.error:
            self.say(f"pass {self.passes}: {report.error}")
            previous = read_report(self.study)
            if previous is not None:
                report = previous.model_copy(update={"error": report.error})
        write_report(self.study, report)
        return report

    def _wait(self, pause: float) -> None:
        """The pause after an error; `finish` cuts a long one short, since then somebody is waiting."""
        until = time.monotonic() + pause
        asked = self.finish.is_set()
        while time.monotonic() < until:
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


def _brief(error: Exception) -> str:
    """The cause in one line: the layers of HTTP libraries say the same thing three times."""
    text = " ".join(str(error).split())
    cause = re.search(r"\[Errno \d+\] [\w ]+|Read timed out|Name or service not known|error code \d{3}", text)
    called = re.search(r"(?:request to|to endpoint) (\S+)", text)
    if cause and called:
        return f"{cause.group(0)} at {called.group(1).rstrip(',.')}"
    return f"{type(error).__name__}: {text[:200]}"


def _listen(finish: threading.Event, end: Callable[[], None]) -> None:
    """Reads the driver's pipe: `finish` sets the event; the end of the file without it means that the driver is gone."""
    for line in sys.stdin.buffer:
        if line.strip() == b"finish":
            finish.set()
    if not finish.is_set():
        end()


def _leave() -> NoReturn:
    os._exit(4)  # a call to a slow server may be under way in the main thread; every write to disk is atomic


def _watch_parent(parent: int) -> None:
    """For the case that somebody else inherited the pipe: the driver's death also shows as a new parent."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    _leave()


def main(arguments: list[str] | None = None) -> int:
    """0: MLflow holds the study. 4: it does not yet. 2: the store cannot be used as configured."""
    parser = argparse.ArgumentParser(prog="python -m runner.tracking.process", description=__doc__)
    parser.add_argument("study", type=Path, help="folder of the study")
    parser.add_argument("--root", type=Path, required=True, help="results root (mlruns)")
    parser.add_argument("--tracking", default="{}", help="TrackingSpec as JSON")
    parser.add_argument("--driven", action="store_true", help="a driver holds our standard input")
    options = parser.parse_args(arguments)
    root, study = RootPaths(options.root), StudyPaths(options.study)
    tracking = TrackingSpec.model_validate_json(options.tracking)
    finish = threading.Event()
    if options.driven:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        threading.Thread(target=_listen, args=(finish, _leave), daemon=True).start()
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        os.nice(10)
    while options.driven and not study.plan.is_file() and not finish.is_set():
        time.sleep(LOOK_EVERY_S)
    report = Follower(
        study, lambda: track_study(root, study, tracking), options.driven, finish, say=lambda text: print(text, file=sys.stderr, flush=True)
    ).run()
    return 0 if report.complete else 2 if (report.error or "").startswith("error:") else 4


if __name__ == "__main__":
    sys.exit(main())
