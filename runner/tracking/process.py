"""The tracking process: `python -m runner.tracking.process STUDY_FOLDER --root ROOT` follows a study and feeds MLflow.

It reads records and writes MLflow; it never writes records. A server that is down, slow or answers 500 costs it retries
with growing pauses, and nobody else anything."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from runner.records.paths import RootPaths, StudyPaths
from runner.spec.study import TrackingSpec
from runner.tracking.follower import LOOK_EVERY_S, Follower
from runner.tracking.launcher import TrackingProcess
from runner.tracking.mlflow_tracker import track_study

__all__ = ["TrackingProcess", "main"]


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
