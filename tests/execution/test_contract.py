"""The executor contract: what holds for `inline` holds for `ray`."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.engines.locks import NodeLock
from runner.errors import NodeBusy
from runner.execution.executor import Executor
from runner.execution.inline import InlineExecutor
from runner.records.schema import LaunchRecord
from tests.execution.conftest import marked_with, wait_for_none
from tests.execution.launching import engine, launch_job, node_order


def test_open_describe_launch_refuse_close(make_executor: Callable[[], Executor], tmp_path: Path) -> None:
    executor = make_executor()
    try:
        (node,) = executor.open(node_order(tmp_path / "lock"), None)
        facts = node.describe()
        assert facts.engine.simulated and facts.host and facts.boot_id and node.name

        events = list(node.launch(launch_job(tmp_path)))
        assert [event.kind for event in events if event.kind != "stage"] == ["phase", "launch"]
        record = events[-1].record
        assert record is not None and record.outcome == "ok", record
        assert record.phases[0].valid and record.boot_id == facts.boot_id
        assert (tmp_path / "b00-p00-baseline" / "launch.json").is_file()
        stages = [event.stage for event in events if event.kind == "stage"]
        assert stages.index("start") < stages.index("describe") < stages.index("phase decode_c1") < stages.index("stop")

        with pytest.raises(NodeBusy, match="study s"):
            NodeLock(tmp_path / "lock").acquire(study="other")
        again = list(node.launch(launch_job(tmp_path, "b00-p01-baseline")))
        assert again[-1].record is not None and again[-1].record.outcome == "ok"
    finally:
        executor.close()
    assert wait_for_none(tmp_path) == []
    with NodeLock(tmp_path / "lock"):
        pass


def test_a_node_that_another_study_holds_is_busy(make_executor: Callable[[], Executor], tmp_path: Path) -> None:
    executor = make_executor()
    try:
        with NodeLock(tmp_path / "lock", study="theirs"), pytest.raises(NodeBusy, match="study theirs"):
            executor.open(node_order(tmp_path / "lock"), None)
    finally:
        executor.close()


def test_close_in_the_middle_of_a_launch_leaves_nothing(make_executor: Callable[[], Executor], tmp_path: Path) -> None:
    executor = make_executor()
    try:
        (node,) = executor.open(node_order(tmp_path / "lock"), None)
        events = node.launch(launch_job(tmp_path, load_s=60))
        assert next(events).kind == "stage"
        node.close()
        assert marked_with(tmp_path) == []  # not a moment later
    finally:
        executor.close()


def test_a_server_whose_scheduler_dies_under_load_is_not_waited_for(tmp_path: Path) -> None:
    """0.5.9 has no watchdog over its children: HTTP goes on, requests are accepted and never answered. Their own time-outs are
    minutes; the launch ends as soon as the child is gone."""
    job = launch_job(tmp_path)
    simulation = engine().simulation.model_copy(update={"faults": ({"kind": "os_oom", "at": "load", "after_requests": 2},)})
    order = job.order.model_copy(update={"engine": engine().model_copy(update={"simulation": simulation})})
    executor = InlineExecutor()
    ended: list[LaunchRecord] = []
    try:
        (node,) = executor.open(node_order(tmp_path / "lock"), None)

        def launch() -> None:
            ended.extend(event.record for event in node.launch(job.model_copy(update={"order": order})) if event.record is not None)

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "the launch hangs on a dead server"
    finally:
        executor.close()
    (record,) = ended
    assert record.outcome == "failed" and record.failure is not None
    assert (record.failure.kind, record.failure.retry, record.failure.stage) == ("scheduler_died", "once", "phase decode_c1")
    assert not record.phases[0].valid
    assert wait_for_none(tmp_path) == []
