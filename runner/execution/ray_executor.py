"""The Ray executor: one actor a node, holding all of its GPUs through a placement group.

Traps that shaped it (Ray 2.60): a stale cluster file makes `address=auto` hang, so addresses are probed; infeasible bundles
wait silently, so feasibility is checked; actors keep max_restarts=0, since a restarted actor has no server; two local Rays do
not see each other, so the worker takes a node lock besides."""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.errors import NodeBusy, NotFinished, RunnerError, UserError
from runner.execution.executor import NodeHandle, NodeLost
from runner.execution.job import Event, LaunchJob, NodeFacts, NodeOrder
from runner.spec.study import RaySpec

OBJECT_STORE_BYTES = 100 * 1024 * 1024
PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent.parent)


class NodeActor:
    """The actor: a NodeWorker that is made on demand, so that its errors arrive as themselves."""

    def __init__(self) -> None:
        self._worker: Any = None

    def open(self, order: NodeOrder) -> NodeFacts:
        from runner.execution.worker import NodeWorker

        self._worker = NodeWorker(order)
        return self._worker.facts  # type: ignore[no-any-return]

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        yield from self._worker.launch(job)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def prepare_environment() -> None:
    """Before Ray is imported: no usage reporting, no copy of the working directory under `uv run`, quiet start."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def probe_address(address: str, timeout_s: float = 2.0) -> None:
    """Raises UserError when nothing listens at `host:port` (a dead cluster would make Ray wait for minutes)."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"execution.ray.address={address!r}: give host:port of a running cluster's head, or null for a local Ray")
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
    except OSError as error:
        raise UserError(f"execution.ray.address={address}: nothing answers there ({error}); start the cluster or use null") from None


class RayNode:
    """A handle on one node's actor."""

    def __init__(self, actor: Any, group: Any, facts: NodeFacts, name: str) -> None:
        self._actor, self._group, self._facts, self.name = actor, group, facts, name

    def describe(self) -> NodeFacts:
        return self._facts

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            for reference in self._actor.launch.options(num_returns="streaming").remote(job):
                yield ray.get(reference)
        except RayTaskError as error:
            raise _cause(error) from error
        except RayActorError as error:
            raise NodeLost(f"{self.name}: {_first_line(error)}") from error

    def close(self) -> None:
        import ray

        with contextlib.suppress(Exception):
            ray.get(self._actor.close.remote(), timeout=40)
        self.abort()

    def abort(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            ray.kill(self._actor)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)


class RayExecutor:
    """Joins the cluster at `spec.address` or starts a local one. Starting takes seconds, so it begins at once, in a thread."""

    kind = "ray"

    def __init__(self, spec: RaySpec, gpus: int, pretend_gpus: bool) -> None:
        """`pretend_gpus`: a simulated node's GPUs are counted as a resource of the local Ray. Raises UserError at once
        when the address does not answer."""
        if spec.address is not None:
            probe_address(spec.address)
        self._spec, self._gpus, self._pretend = spec, gpus, pretend_gpus
        self._nodes: list[NodeHandle] = []
        self._error: BaseException | None = None
        self._ready, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._start, name="ray-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        """Starts Ray and stays: the kernel ends Ray's processes with the *thread* that started them (PR_SET_PDEATHSIG)."""
        try:
            self._init()
        except BaseException as error:  # noqa: BLE001  handed to the thread that waits for the cluster
            self._error = error
        self._ready.set()
        self._closing.wait()
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.shutdown()

    def _init(self) -> None:
        prepare_environment()
        import logging

        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "engine-flag-runner"}
        if self._spec.address is not None:
            variables = {"PYTHONPATH": _python_path(), "RAY_USAGE_STATS_ENABLED": "0"}
            ray.init(address=self._spec.address, runtime_env={"env_vars": variables}, **options)
            return
        # A local cluster inherits our environment; a runtime environment would cost each actor a second and a half.
        os.environ["PYTHONPATH"] = _python_path()
        if self._pretend:
            options["num_gpus"] = self._gpus
        with _no_visible_devices() if self._pretend else contextlib.nullcontext():
            ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=max(2, os.cpu_count() or 2),
                object_store_memory=OBJECT_STORE_BYTES,
                **options,
            )

    def _cluster(self) -> Any:
        self._ready.wait()
        if self._error is not None:
            raise UserError(f"Ray did not start: {_first_line(self._error)}; `execution.executor=inline` works without it") from self._error
        import ray

        return ray

    def open(self, order: NodeOrder, nodes: int | None) -> list[NodeHandle]:
        ray = self._cluster()
        able = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= self._gpus]
        if not able:
            have = sorted({int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]})
            raise UserError(f"node {order.node.name} needs {self._gpus} GPUs on one machine; this cluster's machines have {have}")
        wanted = min(len(able), nodes or (len(able) if self._gpus else 1))
        errors: list[RunnerError] = []
        for _ in range(wanted):
            try:
                self._nodes.append(self._open_one(order, shared_host=len({node["NodeManagerAddress"] for node in able}) < len(able)))
            except RunnerError as refused:
                errors.append(refused)
        if not self._nodes:
            raise errors[0]
        for error in errors:
            print(f"one node less: {error}", file=sys.stderr)
        return list(self._nodes)

    def _open_one(self, order: NodeOrder, shared_host: bool, patience_s: float = 10.0) -> NodeHandle:
        ray = self._cluster()
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([{"CPU": 1, **({"GPU": self._gpus} if self._gpus else {})}], strategy="STRICT_PACK")
        if not group.wait(timeout_seconds=max(patience_s, order.busy_wait_s)):
            remove_placement_group(group)
            raise NodeBusy(f"all machines with {self._gpus} free GPUs are taken by other work of this Ray cluster")
        node_id = next(iter(placement_group_table(group)["bundles_to_node_id"].values()))
        if shared_host:  # several raylets on one machine: each stands for a node of its own
            from runner.engines.locks import default_lock_folder

            base = order.lock_dir or str(default_lock_folder())
            order = order.model_copy(update={"lock_dir": f"{base}/{node_id[:12]}"})
        actor = (
            ray.remote(NodeActor)
            .options(num_cpus=1, num_gpus=self._gpus, max_restarts=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group))
            .remote()
        )
        try:
            facts = ray.get(actor.open.remote(order), timeout=300 + order.busy_wait_s)
        except (RayTaskError, RayActorError, GetTimeoutError) as error:
            with contextlib.suppress(Exception):
                ray.kill(actor)
            remove_placement_group(group)
            if isinstance(error, RayTaskError):
                raise _cause(error) from error
            raise NotFinished(f"the node's actor did not come up: {_first_line(error)}; start the same command again") from error
        return RayNode(actor, group, facts, name=f"{facts.host}/{node_id[:6]}" if shared_host else facts.host)

    def replace(self, order: NodeOrder) -> NodeHandle | None:
        try:
            # A spare machine is free at once; whoever waits longer keeps the other nodes' results waiting.
            node = self._open_one(order, shared_host=True, patience_s=2.0)
        except RunnerError:
            return None
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        self._nodes.clear()
        self._ready.wait()
        self._closing.set()
        self._thread.join()


@contextlib.contextmanager
def _no_visible_devices() -> Iterator[None]:
    """Ray refuses to pretend GPUs that CUDA_VISIBLE_DEVICES does not list."""
    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden


def _python_path() -> str:
    inherited = os.environ.get("PYTHONPATH", "")
    return PACKAGE_PARENT if not inherited else f"{PACKAGE_PARENT}{os.pathsep}{inherited}"


def _cause(error: Any) -> BaseException:
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
