"""Clusters of several raylets on this machine, and a study on them. Each raylet stands for a node with one pretended GPU."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from runner.engines import process
from runner.execution.job import NodeOrder
from runner.execution.loop import Recipe, StudyLoop
from runner.execution.ray_executor import RayExecutor, prepare_environment
from runner.execution.scheduler import Scheduler
from runner.execution.study import open_study
from runner.records.journal import read_journal
from runner.records.paths import RootPaths
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol
from runner.spec.study import RaySpec
from tests.execution.example import small_plan
from tests.execution.fakes import Silent
from tests.execution.launching import LIMITS, MODEL, NODE, WORKLOAD, engine


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A ray.cluster_utils.Cluster: a head without GPUs, and `nodes` raylets with one each (about 0.5 GB a raylet with its actor)."""
    prepare_environment()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 << 20, wait=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


class Watching(Silent):
    """Calls `on_done` after each launch."""

    def __init__(self, on_done: Callable[[int], None]) -> None:
        super().__init__()
        self._on_done, self._count = on_done, 0

    def launch_done(self, record: LaunchRecord) -> None:
        self._count += 1
        self._on_done(self._count)


def run_study(
    root: Path, address: str, blocks: int, load_s: float, nodes: int | None = None, on_done: Any = lambda count: None
) -> Watching:
    """`blocks` blocks of three arms on the cluster's nodes, on the simulated engine; its journal lies in `root`."""
    protocol = Protocol(min_blocks=blocks, max_blocks=blocks, confirm=False, prime=False, fingerprint_prompts=0, limits=LIMITS)
    recipe = Recipe(engine=engine(load_s), model=MODEL, node=NODE, workload=WORKLOAD, protocol=protocol, factors={})
    order = NodeOrder(study="mine", engine=engine(load_s), node=NODE, lock_dir=str(root / "lock"))
    study = open_study(RootPaths(root), small_plan(), name="mine", new=False, config={})
    scheduler, listener = Scheduler(study.plan, protocol, None, []), Watching(on_done)
    scheduler.restore(*study.history())
    executor = RayExecutor(RaySpec(address=address, nodes=nodes), gpus=1, pretend_gpus=True)
    try:
        StudyLoop(study, recipe, scheduler, executor, order, listener).run(executor.open(order, nodes))
    finally:
        executor.close()
        study.close()
    return listener


def entries(root: Path) -> list[dict[str, Any]]:
    return read_journal(RootPaths(root).study("mine").journal)


def nodes_of_blocks(root: Path) -> dict[int, set[str]]:
    """Which nodes finished launches of each block."""
    started = {entry["launch"]: entry["node"] for entry in entries(root) if entry["kind"] == "launch_started"}
    found: dict[int, set[str]] = {}
    for entry in entries(root):
        if entry["kind"] == "launch_finished":
            found.setdefault(entry["launch"]["block"], set()).add(started[entry["launch"]["launch"]])
    return found


def lose_machine(node: Any) -> None:
    """kill -9 to a raylet and its workers, as when a machine is gone. (Workers of a dead raylet alone live on for 15 s.)"""
    raylet = process.look(node.all_processes["raylet"][0].process.pid)
    assert raylet is not None
    workers = process.descendants([raylet.pid])
    process.send_all([raylet, *workers], signal.SIGKILL)
