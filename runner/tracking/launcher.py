"""Starts and ends the tracking process of a study. Imports neither mlflow nor anything slow: the driver calls this.

The driver holds the write end of a pipe to the process: the word `finish` asks for a last pass, a bare end of file means
that the driver died, and then the process ends too (the records wait; the next run or `action=track` sends them)."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from runner.records.paths import RootPaths, StudyPaths
from runner.spec.study import TrackingSpec
from runner.tracking.mlflow_tracker import TrackReport, waiting
from runner.tracking.outbox import read_report, tracking_log

PARTING_S = 3.0


@dataclass
class TrackingProcess:
    """The tracking process of one study, as its driver sees it. `process` is None before `start` and where tracking is off."""

    root: RootPaths
    study: StudyPaths
    tracking: TrackingSpec
    process: "subprocess.Popen[bytes] | None" = None
    report: TrackReport | None = None

    def start(self) -> None:
        """Returns at once (a few ms). The process follows the journal by itself; nothing it does can delay a launch.
        Never fails a study: where no process can be started, the records wait."""
        if not self.tracking.enabled or self.process is not None:
            return
        folder = str(self.study.folder.absolute())
        command = [sys.executable, "-m", "runner.tracking.process", folder, "--root", str(self.root.root.absolute())]
        command += ["--tracking", self.tracking.model_dump_json(), "--driven"]
        try:
            self.study.folder.mkdir(parents=True, exist_ok=True)
            with open(tracking_log(self.study), "ab") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at the terminal is the driver's; it tells us what it wants
                    env={**os.environ, "RUNNER_TRACKING": self.study.name, "PYTHONPATH": _python_path()},
                    cwd=folder,
                )
        except OSError:
            self.process = None

    def finish(self, deadline_s: float | None = None) -> TrackReport:
        """Asks for the last pass and waits for it at most `deadline_s` seconds (default `tracking.timeout_s`). Then the
        process is ended and the report names what still waits. Call it after report and decision are written. Idempotent."""
        limit = self.tracking.timeout_s if deadline_s is None else deadline_s
        if not self.tracking.enabled:
            self.report = TrackReport(uri="", study=self.study.name, notes=("tracking is off (tracking.enabled=false)",))
            return self.report
        started = time.monotonic()
        done = self.process is not None and _ask_and_wait(self.process, limit)
        last = read_report(self.study)
        if done and last is not None and last.complete:
            self.report = last
            return last
        left = waiting(self.root, self.study, self.tracking)
        error = (last.error if last else None) or (f"not done within {limit:.0f} s" if left else None)
        uri = self.tracking.uri or f"sqlite:///{self.root.database.absolute()}"
        base = last or TrackReport(uri=uri, study=self.study.name)
        self.report = base.model_copy(update={"waiting": left, "error": error, "seconds": time.monotonic() - started})
        return self.report

    def part(self, interrupted: bool) -> None:
        """For a driver that goes before the study's end: one who was interrupted has MLflow told (what is open is KILLED), if that
        takes no longer than PARTING_S; nobody waits for more. What is not sent waits in the records. Idempotent."""
        if interrupted and self.process is not None and _ask_and_wait(self.process, PARTING_S):
            return
        self.abandon()

    def abandon(self) -> None:
        """Ends the process now; what is not sent waits in the records. Idempotent."""
        if self.process is not None:
            _end(self.process)

    def summary(self) -> list[str]:
        """Lines for the person after `finish`: where to look, or what waits and how it is sent."""
        return str(self.report).splitlines() if self.report is not None else []


def start_tracking(root: RootPaths, study: StudyPaths, tracking: TrackingSpec) -> TrackingProcess:
    """A started tracking process."""
    process = TrackingProcess(root, study, tracking)
    process.start()
    return process


def finish_tracking(process: TrackingProcess, deadline_s: float | None = None) -> TrackReport:
    """See `TrackingProcess.finish`."""
    return process.finish(deadline_s)


def _python_path() -> str:
    """The process starts in the study's folder (mlflow may leave files where it runs), so a checkout must be named."""
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])


def _ask_and_wait(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    """True when the process ended by itself in time; else it has been ended."""
    if process.stdin is not None and not process.stdin.closed:
        try:
            process.stdin.write(b"finish\n")
            process.stdin.close()
        except OSError:
            pass
    try:
        process.wait(timeout=max(0.0, limit))
        return True
    except subprocess.TimeoutExpired:
        _end(process)
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, two seconds, SIGKILL. Every write of the process to disk is atomic and every run in MLflow has its key."""
    if process.stdin is not None and not process.stdin.closed:
        try:
            process.stdin.close()
        except OSError:
            pass
    process.terminate()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
