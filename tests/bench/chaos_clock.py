"""Clock jumps for the chaos campaign: every Python process of a study sees a wall clock that is set while it runs.

The machine's own clock is left alone: `time.time` and its relatives are replaced at the start of each interpreter."""

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator

from tests.bench.chaos_events import Event, Verdict, ended, sleep_while_alive
from tests.bench.chaos_study import ChaosStudy

SITE = '''\
"""Adds the number in the file beside this one to the wall clock."""
import os, time
_here = os.path.dirname(os.path.abspath(__file__))
_real = {name: getattr(time, name) for name in ("time", "time_ns", "localtime", "gmtime", "strftime")}
def _offset():
    try:
        with open(os.path.join(_here, "offset")) as file:
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0
time.time = lambda: _real["time"]() + _offset()
time.time_ns = lambda: _real["time_ns"]() + int(_offset() * 1e9)
time.localtime = lambda seconds=None: _real["localtime"](time.time() if seconds is None else seconds)
time.gmtime = lambda seconds=None: _real["gmtime"](time.time() if seconds is None else seconds)
time.strftime = lambda text, when=None: _real["strftime"](text, time.localtime() if when is None else when)
open(os.path.join(_here, f"loaded-{os.getpid()}"), "w").close()
'''
LONGEST_S = 300.0


@contextlib.contextmanager
def settable_clock(study: ChaosStudy, verdict: Verdict) -> Iterator[None]:
    """Driver, workers and servers get the settable clock; a resumed driver has the machine's own, which is a jump once more."""
    place = study.folder / "clock"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SITE)
    study.words[:] = [*study.words, f"+engine.env.PYTHONPATH={place}"]
    yield


def jumps(seconds: float, die: bool = False) -> Callable[[ChaosStudy, random.Random, float, Verdict], None]:
    """The clock is set by `seconds` at a random instant; `die`: the driver is killed a moment later, else it must not care."""

    def disturb(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
        place = study.folder / "clock"
        study.start(prefix=("env", f"PYTHONPATH={place}"))
        sleep_while_alive(study, at)
        (place / "offset").write_text(str(seconds))
        if die:
            sleep_while_alive(study, rng.uniform(0.1, 2.0))
            study.kill("driver")
        ended(study, verdict)
        if not list(place.glob("loaded-*")):
            verdict.problems.append("no process saw the settable clock: nothing was tested")
        if not die and verdict.code not in (0, 3):
            verdict.problems.append(f"a clock that is set must not stop a study, exit code {verdict.code}")
        verdict.problems += times_wrong(study)

    return disturb


def times_wrong(study: ChaosStudy) -> list[str]:
    """Times of the journal that cannot be: backwards, a launch that lasts for hours, GPU time that was not spent."""
    path = study.paths / "journal.jsonl"
    whole = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")] if path.exists() else []
    entries = [json.loads(line) for line in whole]
    wrong = [
        f"the journal's time runs backwards at line {entry['seq']}"
        for before, entry in itertools.pairwise(entries)
        if entry["t"] < before["t"]
    ]
    for entry in entries:
        if entry["kind"] == "launch_finished":
            launch = entry["launch"]
            took = launch["ended_at"] - launch["started_at"]
            if (
                not 0 < took < LONGEST_S
                or not 0 < launch["gpu_seconds"] < 16 * LONGEST_S
                or not 0 <= (launch["idle_gap_s"] or 0) < LONGEST_S
            ):
                wrong.append(f"{launch['launch']} lasts {took:.0f} s, {launch['gpu_seconds']:.0f} GPU s, after {launch['idle_gap_s']} s")
    return wrong


CLOCK_EVENTS = (
    Event("clock set back an hour", jumps(-3600.0), around=settable_clock, weight=2),
    Event("clock set forward a day", jumps(86400.0), around=settable_clock, weight=2),
    Event("clock set back a day, kill -9 driver", jumps(-86400.0, die=True), around=settable_clock, weight=2),
    Event("clock set forward an hour, kill -9 driver", jumps(3600.0, die=True), around=settable_clock, weight=1),
)
