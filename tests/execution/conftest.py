"""One small Ray for all tests of a session, and the executors that the contract is tested on."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.engines import process
from runner.execution.executor import Executor
from runner.execution.inline import InlineExecutor

OpenExecutor = Callable[[], Executor]


def marked_with(folder: Path) -> list[str]:
    """Command lines of live processes that name `folder` in command line or environment: what launches below it left."""
    mark, found = str(folder), []
    for seen in process.everything():
        line = process.command_line(seen.pid)
        if seen.live and "pytest" not in line and (mark in line or mark in process.environment(seen.pid).get("PWD", "")):
            found.append(line)
    return found


def wait_for_none(folder: Path, seconds: float = 10.0) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := marked_with(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.fixture(scope="session")
def ray_head() -> Iterator[str]:
    """The address of a Ray of one raylet with one pretended GPU."""
    from runner.execution.ray_executor import prepare_environment

    prepare_environment()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "num_gpus": 1, "object_store_memory": 80 << 20})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture(params=["inline", "ray"])
def make_executor(request: pytest.FixtureRequest) -> OpenExecutor:
    if request.param == "inline":
        return InlineExecutor
    address: str = request.getfixturevalue("ray_head")

    def connect() -> Executor:
        from runner.execution.ray_executor import RayExecutor
        from runner.spec.study import RaySpec

        return RayExecutor(RaySpec(address=address), gpus=1, pretend_gpus=True)

    return connect
