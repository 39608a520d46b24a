"""The chaos campaign, shortened: five tiny studies by the command line, each disturbed once, resumed, and compared with an
undisturbed one. The whole campaign is `make chaos`."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.bench.chaos import Undisturbed, one
from tests.bench.chaos_events import Event, kills, signals

SHORT = ("protocol.min_blocks=1", "protocol.max_blocks=1")
STUBBORN = ("engine.simulation.faults=[{kind:orphan},{kind:ignore_sigterm}]",)
EVENTS = (
    Event("kill -9 driver", kills("driver")),
    Event("kill -9 scheduler child", kills("scheduler")),
    Event("kill -9 guard or keeper", kills("guard")),
    Event("Ctrl-C once", signals(signal.SIGINT, code=130)),
    Event("orphan and ignored SIGTERM, kill -9 driver", kills("driver"), words=STUBBORN),
)


def test_whatever_is_killed_the_study_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = Undisturbed(tmp_path)
    undisturbed.same((*STUBBORN, *SHORT), like=SHORT)
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(one, replace(event, words=(*event.words, *SHORT)), number, 7, tmp_path, undisturbed)
            for number, event in enumerate(EVENTS)
        ]
        verdicts = [job.result() for job in jobs]
    assert not [verdict.line() for verdict in verdicts if verdict.problems]
    assert any(verdict.resumes for verdict in verdicts), "nothing was resumed, so nothing was tested"
