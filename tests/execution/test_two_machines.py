"""A server that spans two machines (two raylets): one placement group over both, one engine process on each, one record."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.engines import process
from runner.execution.executor import NodeLost
from runner.execution.job import LaunchJob
from runner.execution.ray_executor import RayExecutor
from runner.spec.study import RaySpec
from tests.execution.clusters import cluster_of, lose_machine
from tests.execution.conftest import wait_for_none
from tests.execution.launching import NODE, launch_job, node_order

pytestmark = pytest.mark.cluster

WIDE = NODE.model_copy(update={"gpus": 2, "machines": 2})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(2) as made:
        yield made


@pytest.fixture
def node(cluster: Any, tmp_path: Path) -> Iterator[Any]:
    executor = RayExecutor(RaySpec(address=cluster.address), gpus=2, pretend_gpus=True, machines=2)
    try:
        (opened,) = executor.open(node_order(tmp_path / "lock").model_copy(update={"node": WIDE}), None)
        yield opened
    finally:
        executor.close()
    assert wait_for_none(tmp_path, 20.0) == []


def wide_job(folder: Path, name: str, load_s: float = 0.05) -> LaunchJob:
    job = launch_job(folder, name, load_s)
    return job.model_copy(update={"order": job.order.model_copy(update={"node": WIDE, "options": {"tp-size": 2}})})


def order_of(folder: Path, launch: str) -> dict[str, Any]:
    return dict(json.loads((folder / launch / "order.json").read_text()))


def test_one_process_a_machine_with_rank_and_address(node: Any, tmp_path: Path) -> None:
    record = list(node.launch(wide_job(tmp_path, "wide")))[-1].record
    assert record is not None and record.outcome == "ok", record
    first, second = order_of(tmp_path, "wide")["ranks"], order_of(tmp_path, "wide/rank-1")["ranks"]
    assert (first["rank"], second["rank"], first["count"]) == (0, 1, 2)
    assert first["address"] == second["address"]
    assert "node rank 1" in (tmp_path / "wide" / "rank-1" / "server.log").read_text()
    again = list(node.launch(wide_job(tmp_path, "again")))[-1].record
    assert again is not None and again.outcome == "ok" and again.notes == ()


def test_a_rank_that_dies_ends_the_launch_and_is_named(node: Any, tmp_path: Path) -> None:
    events = node.launch(wide_job(tmp_path, "wide", load_s=60))
    assert next(events).kind == "stage"
    threading.Timer(0.5, _kill_rank, (tmp_path,)).start()
    record = list(events)[-1].record
    assert record is not None and record.outcome == "failed"
    assert any("rank 1" in note for note in record.notes), record.notes


def test_a_machine_that_is_lost_takes_the_node_with_it(cluster: Any, node: Any, tmp_path: Path) -> None:
    events = node.launch(wide_job(tmp_path, "wide", load_s=60))
    assert next(events).kind == "stage"
    victim = next(each for each in cluster.list_all_nodes() if each is not cluster.head_node)
    threading.Timer(0.5, lose_machine, (victim,)).start()
    with pytest.raises(NodeLost):
        list(events)


def _kill_rank(folder: Path) -> None:
    for seen in process.everything():
        if str(folder / "wide" / "rank-1" / "order.json") in process.command_line(seen.pid):
            process.send(seen.pid, seen.start, signal.SIGKILL)
