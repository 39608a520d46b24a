"""What only the Ray executor has: clusters that are not there, machines that are too small, and the death of its processes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runner.errors import NotFinished, UserError
from runner.execution.executor import NodeLost
from runner.execution.ray_executor import RayExecutor
from runner.spec.study import RaySpec
from tests.execution.conftest import wait_for_none
from tests.execution.launching import launch_job, node_order

REPOSITORY = Path(__file__).resolve().parents[2]


def test_an_address_where_nothing_answers_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="nothing answers there"):
        RayExecutor(RaySpec(address="127.0.0.1:9"), gpus=1, pretend_gpus=True)


def test_a_word_that_is_no_address_is_refused() -> None:
    with pytest.raises(UserError, match="give host:port"):
        RayExecutor(RaySpec(address="auto"), gpus=1, pretend_gpus=True)


def test_more_gpus_than_any_machine_has_is_refused_not_waited_for(ray_head: str, tmp_path: Path) -> None:
    executor = RayExecutor(RaySpec(address=ray_head), gpus=8, pretend_gpus=True)
    try:
        with pytest.raises(UserError, match=r"needs 8 GPUs on one machine; this cluster's machines have \[1\]"):
            executor.open(node_order(tmp_path / "lock"), None)
    finally:
        executor.close()


def test_a_killed_actor_is_a_lost_node_that_leaves_nothing_and_can_be_replaced(ray_head: str, tmp_path: Path) -> None:
    executor = RayExecutor(RaySpec(address=ray_head), gpus=1, pretend_gpus=True)
    try:
        order = node_order(tmp_path / "lock")
        (node,) = executor.open(order, None)
        events = node.launch(launch_job(tmp_path, load_s=60))
        assert next(events).kind == "stage"
        pid = _holder(tmp_path)
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(NodeLost):
            list(events)
        node.close()
        assert wait_for_none(tmp_path) == []
        replacement = executor.replace(order)
        assert replacement is not None
        record = list(replacement.launch(launch_job(tmp_path, "b01-p00-baseline")))[-1].record
        assert record is not None and record.outcome == "ok"
    finally:
        executor.close()
    assert wait_for_none(tmp_path) == []


LISTENERS = """
import os, sys
from pathlib import Path
from runner.engines import process
from runner.execution.ray_executor import RayExecutor
from runner.spec.study import RaySpec
from tests.execution.launching import node_order

executor = RayExecutor(RaySpec(), gpus=1, pretend_gpus=True)
executor.open(node_order(Path(sys.argv[1])), None)
sockets = {os.readlink(link)[8:-1] for seen in process.descendants([os.getpid()], include_roots=True)
           for link in Path(f"/proc/{seen.pid}/fd").glob("*") if os.path.islink(link) and os.readlink(link).startswith("socket:[")}
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in sockets:
            print(words[1].split(":")[0])
executor.close()
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_a_local_ray_listens_on_loopback_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LISTENERS, str(tmp_path / "lock")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    addresses = set(done.stdout.split())
    assert addresses and addresses <= LOOPBACK


def _holder(folder: Path) -> int:
    """The pid in the node lock: the actor's."""
    import json

    (lock,) = (folder / "lock").rglob("node.lock")
    return int(json.loads(lock.read_text())["pid"])


def test_a_ray_that_is_gone_before_it_is_up_is_not_finished_and_not_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: RayExecutor) -> None:
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.setattr(RayExecutor, "_init", dies)
    executor = RayExecutor(RaySpec(), gpus=1, pretend_gpus=True)
    with pytest.raises(NotFinished, match="timed out during startup; start the same command again"):
        executor.open(node_order(tmp_path / "lock"), None)
    executor.close()


def test_a_cluster_without_a_living_machine_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        @staticmethod
        def nodes() -> list[dict[str, object]]:
            return [{"Alive": False, "Resources": {}}]

    monkeypatch.setattr(RayExecutor, "_init", lambda self: None)
    monkeypatch.setattr(RayExecutor, "_cluster", lambda self: Ray)
    executor = RayExecutor(RaySpec(), gpus=1, pretend_gpus=True)
    with pytest.raises(NotFinished, match="no machine of this Ray cluster lives"):
        executor.open(node_order(tmp_path / "lock"), None)
    executor.close()
