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


@dataclass
class TrackingProcess:
    """A running tracking process. `process` is None where tracking is off."""

    root: RootPaths
    study: StudyPaths
    tracking: TrackingSpec
    process: "subprocess.Popen[bytes] | None"

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


def start_tracking(root: RootPaths, study: StudyPaths, tracking: TrackingSpec) -> TrackingProcess:
    """Returns at once (a few ms). The process follows the journal by itself; nothing it does can delay a launch.
    Starting it never fails a study: where no process can be started, the records wait."""
    if not tracking.enabled:
        return TrackingProcess(root, study, tracking, None)
    study.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "runner.tracking.process", str(study.folder.absolute()), "--root", str(root.root.absolute())]
    command += ["--tracking", tracking.model_dump_json(), "--driven"]
    try:
        with open(tracking_log(study), "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal is the driver's; it tells us what it wants
                env={**os.environ, "RUNNER_TRACKING": study.name, "PYTHONPATH": _python_path()},
                cwd=str(study.folder.absolute()),
            )
    except OSError:
        return TrackingProcess(root, study, tracking, None)
    return TrackingProcess(root, study, tracking, process)


def _python_path() -> str:
    """The process starts in the study's folder (mlflow may leave files where it runs), so a checkout must be named."""
    return os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])


def finish_tracking(handle: TrackingProcess, deadline_s: float | None = None) -> TrackReport:
    """Asks for the last pass and waits for it at most `deadline_s` seconds (default `tracking.timeout_s`; 0: not at all).
    Then the process is ended and the report names what still waits. Call it after report and decision are written. Idempotent."""
    limit = handle.tracking.timeout_s if deadline_s is None else deadline_s
    uri = handle.tracking.uri or f"sqlite:///{handle.root.database.absolute()}"
    if not handle.tracking.enabled:
        return TrackReport(uri=uri, notes=("tracking is off (tracking.enabled=false)",))
    started = time.monotonic()
    done = handle.process is not None and _ask_and_wait(handle.process, limit)
    report = read_report(handle.study) if done else None
    if report is not None and report.complete:
        return report
    left = waiting(handle.root, handle.study, handle.tracking)
    error = (report.error if report else None) or _last_error(handle.study) or (f"not done after {limit:.0f} s" if left else None)
    base = report or TrackReport(uri=uri)
    return base.model_copy(update={"waiting": left, "error": error, "seconds": time.monotonic() - started})


def waiting_text(report: TrackReport, study: StudyPaths) -> str:
    """What to tell the person after `finish_tracking`: where to look, or what waits and how it is sent."""
    if report.complete:
        look = "" if report.uri.startswith("http") else f"mlflow ui --backend-store-uri {report.uri} --workers 1, then "
        return f"MLflow: {look}{report.link}" if report.link else "; ".join(report.notes)
    reason = f" ({report.error})" if report.error else ""
    return (
        f"MLflow does not hold everything yet: {len(report.waiting)} runs of {study.name} wait{reason}.\n"
        f"Nothing is lost; send them with: python -m runner action=track study.name={study.name}"
    )


def _ask_and_wait(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    """True when the process ended by itself."""
    if process.stdin is not None and not process.stdin.closed:
        try:
            process.stdin.write(b"finish\n" if limit > 0 else b"")
            process.stdin.close()
        except OSError:
            pass
    try:
        process.wait(timeout=max(0.0, limit))
        return True
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return False


def _last_error(study: StudyPaths) -> str | None:
    report = read_report(study)
    return report.error if report else None
