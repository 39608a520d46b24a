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
from runner.execution.executor import NodeHandle
from runner.execution.job import NodeFacts, NodeOrder
from runner.execution.pool import alike, difference, kind_of
from runner.execution.ray_node import NodeActor, RayNode, cause, first_line
from runner.execution.ray_shutdown import shield, shut_down
from runner.records.schema import EngineIdentity
from runner.spec.study import RaySpec

OBJECT_STORE_BYTES = 100 * 1024 * 1024
NO_FACTS = NodeFacts(host="", boot_id="", engine=EngineIdentity(kind="simulated", version="", build="", simulated=True))
PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent.parent)


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


class RayExecutor:
    """Joins the cluster at `spec.address` or starts a local one. Starting takes seconds, so it begins at once, in a thread."""

    kind = "ray"

    def __init__(self, spec: RaySpec, gpus: int, pretend_gpus: bool, machines: int = 1) -> None:
        """`pretend_gpus`: a simulated node's GPUs are counted as a resource of the local Ray. `gpus` of one node lie evenly on
        `machines` machines. Raises UserError at once when the address does not answer."""
        if spec.address is not None:
            probe_address(spec.address)
        self._spec, self._gpus, self._pretend, self._machines = spec, gpus, pretend_gpus, machines
        self._nodes: list[NodeHandle] = []
        self._error: BaseException | None = None
        self._ready, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._start, name="ray-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        """Starts Ray and stays: the kernel ends Ray's processes with the *thread* that started them (PR_SET_PDEATHSIG). They inherit its
        mask (see ray_shutdown)."""
        shield()
        try:
            self._init()
        except BaseException as error:  # noqa: BLE001  handed to the thread that waits for the cluster
            self._error = error
        self._ready.set()
        self._closing.wait()
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            shut_down(ray)

    def _init(self) -> None:
        prepare_environment()
        if self._spec.address is None:
            # Ray's processes listen on every interface of a machine that may belong to a cluster; ours is for this machine alone.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
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
            why = f"Ray did not start: {first_line(self._error)}"
            if isinstance(self._error, (ImportError, ValueError, PermissionError)):
                raise UserError(f"{why}; `execution.executor=inline` works without it") from self._error
            raise NotFinished(f"{why}; start the same command again (execution.executor=inline works without Ray)") from self._error
        import ray

        return ray

    def open(self, order: NodeOrder, nodes: int | None) -> list[NodeHandle]:
        """All nodes are opened at once: an actor needs a second or two to come up. Nodes of another kind are given back."""
        ray = self._cluster()
        machines, share = self._machines, self._gpus // self._machines
        alive = self._alive(ray)
        able = [node for node in alive if node["Resources"].get("GPU", 0) >= share]
        if len(able) < machines:
            have = sorted({int(node["Resources"].get("GPU", 0)) for node in alive})
            where = "one machine" if machines == 1 else f"{machines} machines ({share} on each)"
            raise UserError(f"node {order.node.name} needs {self._gpus} GPUs on {where}; this cluster's machines have {have}")
        wanted = min(len(able) // machines, nodes or (len(able) if self._gpus else 1))
        shared_host = len({node["NodeManagerAddress"] for node in able}) < len(able)
        opened: list[NodeHandle] = []
        errors: list[Exception] = []

        def open_one() -> None:
            try:
                opened.append(self._open_one(order, shared_host))
            except Exception as refused:  # noqa: BLE001  handed to the thread that waits, whatever it is
                errors.append(refused)

        threads = [threading.Thread(target=open_one, name="open-node", daemon=True) for _ in range(wanted)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._nodes, others = alike(sorted(opened, key=lambda node: node.name))
        for node, how in others:
            node.close()
            errors.append(NotFinished(f"{node.name} is another kind of node: {how}"))
        if not self._nodes:
            raise errors[0]
        for error in errors:
            print(f"one node less: {error}", file=sys.stderr)
        return list(self._nodes)

    @staticmethod
    def _alive(ray: Any) -> list[dict[str, Any]]:
        """The machines that live. Raises NotFinished when the whole cluster is gone: that is nobody's mistake."""
        try:
            alive = [node for node in ray.nodes() if node["Alive"]]
        except Exception as error:
            raise NotFinished(f"Ray is gone: {first_line(error)}; start the same command again") from error
        if not alive:
            raise NotFinished("no machine of this Ray cluster lives any more; start the same command again")
        return alive

    def _open_one(self, order: NodeOrder, shared_host: bool, patience_s: float = 10.0) -> NodeHandle:
        ray = self._cluster()
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        share = self._gpus // self._machines
        bundle = {"CPU": 1, **({"GPU": share} if share else {})}
        strategy = "STRICT_PACK" if self._machines == 1 else "STRICT_SPREAD"
        group = placement_group([dict(bundle) for _ in range(self._machines)], strategy=strategy)
        if not group.wait(timeout_seconds=max(patience_s, order.busy_wait_s)):
            self._alive(ray)
            remove_placement_group(group)
            raise NodeBusy(f"all machines with {share} free GPUs are taken by other work of this Ray cluster")
        places = placement_group_table(group)["bundles_to_node_id"]
        actors, openings = [], []
        for index in range(self._machines):
            node_id = places[index]
            mine = order
            if shared_host:  # several raylets on one machine: each stands for a node of its own
                from runner.engines.locks import default_lock_folder

                mine = order.model_copy(update={"lock_dir": f"{order.lock_dir or default_lock_folder()}/{node_id[:12]}"})
            strategy_of = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            options = {"num_cpus": 1, "num_gpus": share, "max_restarts": 0, "max_concurrency": 4, "scheduling_strategy": strategy_of}
            actor = ray.remote(NodeActor).options(**options).remote()
            actors.append(actor)
            openings.append(actor.open.remote(mine))
        try:
            facts: list[NodeFacts] = ray.get(openings, timeout=300 + order.busy_wait_s)
        except (RayTaskError, RayActorError, GetTimeoutError) as error:
            RayNode(actors, group, NO_FACTS, "").abort()
            if isinstance(error, RayTaskError):
                raise cause(error) from error
            raise NotFinished(f"the node's actor did not come up: {first_line(error)}; start the same command again") from error
        name = "+".join(dict.fromkeys(f"{each.host}/{places[index][:6]}" if shared_host else each.host for index, each in enumerate(facts)))
        node = RayNode(actors, group, facts[0], name)
        different = [how for each in facts[1:] if (how := difference(kind_of(each), kind_of(facts[0])))]
        if different:
            node.close()
            raise UserError(f"the machines of node {name} are not of one kind: {different[0]}")
        return node

    def replace(self, order: NodeOrder) -> NodeHandle | None:
        try:
            # A spare machine is free at once; whoever waits longer keeps the other nodes' results waiting.
            node = self._open_one(order, shared_host=True, patience_s=2.0)
        except RunnerError:
            return None
        if self._nodes and (how := difference(kind_of(node.describe()), kind_of(self._nodes[0].describe()))):
            print(f"{node.name} does not take its place, it is another kind of node: {how}", file=sys.stderr)
            node.close()
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
