"""A tracking server that does not answer at all while a study runs: the journal is that of a study without tracking."""

import threading
import time
from pathlib import Path

from runner.execution.job import NodeOrder
from runner.execution.loop import Recipe, StudyLoop
from runner.execution.scheduler import Scheduler
from runner.execution.study import open_study
from runner.records.journal import read_journal
from runner.records.paths import RootPaths
from runner.records.schema import LaunchRecord
from runner.spec.study import TrackingSpec
from runner.tracking.launcher import TrackingProcess
from tests.bench.slow_mlflow import SlowMlflow, serving
from tests.execution.example import small_plan
from tests.execution.fakes import FakeExecutor, FakeNode, Silent
from tests.execution.launching import MODEL, NODE, PROTOCOL, WORKLOAD, engine


class WaitsForACall(Silent):
    """After the first launch, waits until the tracking process hangs in a call."""

    def __init__(self, server: SlowMlflow) -> None:
        super().__init__()
        self._server = server

    def launch_done(self, record: LaunchRecord) -> None:
        deadline = time.monotonic() + 120
        while not self._server.calls and time.monotonic() < deadline:
            time.sleep(0.02)


def lines_of(root: Path, tracking: TrackingSpec, listener: Silent) -> list[tuple[str, str]]:
    """(kind, launch) of every line of the journal of one study on a node without servers."""
    study = open_study(RootPaths(root), small_plan(), name="s", new=False, config={})
    process = TrackingProcess(RootPaths(root), study.paths, tracking)
    scheduler = Scheduler(study.plan, PROTOCOL, None, [])
    recipe = Recipe(engine=engine(), model=MODEL, node=NODE, workload=WORKLOAD, protocol=PROTOCOL, factors={})
    nodes = [FakeNode("a")]
    order = NodeOrder(study="s", engine=engine(), node=NODE)
    try:
        process.start()
        StudyLoop(study, recipe, scheduler, FakeExecutor(nodes), order, listener).run(list(nodes))
    finally:
        process.abandon()
        study.close()
    found = []
    for entry in read_journal(study.paths.journal):
        launch = entry.get("launch_id") or entry.get("launch") or ""
        found.append((entry["kind"], launch if isinstance(launch, str) else ""))
    return found


def test_launches_go_on_while_the_tracking_process_hangs_in_a_call(tmp_path: Path) -> None:
    plain = lines_of(tmp_path / "off", TrackingSpec(enabled=False), Silent())
    server = SlowMlflow(tmp_path / "artifacts", hold=threading.Event())
    with serving(server) as address:
        tracked = lines_of(tmp_path / "slow", TrackingSpec(uri=address), WaitsForACall(server))
        assert server.calls > 0, "nothing was asked of the server, so nothing was tested"
        assert server.answered == 0
    assert tracked == plain
    assert sum(kind == "launch_finished" for kind, _ in plain) == 6
