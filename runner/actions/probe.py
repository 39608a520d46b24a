"""`action=probe [json=true]`: measures all-reduces on this node and stores the lines for `action=budget` and the plan."""

import json
from pathlib import Path

from runner.actions.ground import root_of
from runner.config import Settings
from runner.engines.probing.all_reduce import ProbeOrder, measure_all_reduce, probe_text
from runner.engines.probing.stored import NodeProbe, probe_path
from runner.errors import UserError
from runner.records.files import write_json
from runner.spec.node import NodeSpec

CPU_RANKS = 2


def perform(settings: Settings, overrides: list[str]) -> int:
    probe = measured(settings)
    path = probe_path(root_of(settings), settings.node.name)
    write_json(path, probe.model_dump(mode="json", by_alias=True))
    if settings.json_output:
        print(json.dumps({**probe.model_dump(mode="json", by_alias=True), "file": str(path)}))
    else:
        print(f"{probe_text(probe)}\nstored in {path}")
    return 0


def order_for(node: NodeSpec, visible: int) -> ProbeOrder:
    """NCCL over the node's GPUs, gloo over two processes on a node without any. A CPU never stands in for GPUs.

    Raises UserError where the node as described is not this machine."""
    if node.gpus == 0:
        return ProbeOrder(backend="gloo", ranks=CPU_RANKS, rounds=5, budget_s=0.3)
    if visible < node.gpus:
        raise UserError(
            f"node {node.name} has {node.gpus} GPUs, but {visible} are visible here: its collectives cannot be measured on this "
            f"machine. Run action=probe on the node, or measure this one's CPU with node=cpu"
        )
    if node.gpus == 1:
        raise UserError(f"node {node.name} has one GPU: there is nothing to reduce over")
    return ProbeOrder(backend="nccl", ranks=node.gpus)


def measured(settings: Settings) -> NodeProbe:
    """Takes the node, measures, gives it back. Raises UserError, NodeBusy, ProbeFailed."""
    from runner.engines.environment import base_environment, python_path
    from runner.engines.gpus import Gpus, visible_count
    from runner.engines.guard import GuardedOwner
    from runner.engines.identity import identify_sglang
    from runner.engines.ledger import Ledger
    from runner.engines.locks import NodeLock, default_lock_folder

    if settings.engine.kind in ("container", "attached"):
        raise UserError(f"action=probe needs an interpreter on this machine, not engine={settings.engine.kind}: give engine=sglang")
    if settings.engine.python is None:
        raise UserError("action=probe needs engine.python=/path/to/venv/bin/python: an interpreter with torch, best the engine's own")
    order = order_for(settings.node, visible_count() if settings.node.gpus else 0)
    env = base_environment() | python_path(None, settings.engine.extra_python_path) | settings.node.env
    if order.backend == "gloo":
        env = env | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        engine: str | None = identify_sglang(settings.engine.python, env).version
    except UserError:
        engine = None  # torch alone is enough
    folder = Path(settings.execution.lock_dir) if settings.execution.lock_dir else default_lock_folder()
    lock = NodeLock(folder)
    lock.acquire(study="probe")
    try:
        if order.backend == "nccl":
            Gpus.visible().demand_free(timeout=settings.engine.deadlines.memory_free_s)
        with GuardedOwner(Ledger(folder, study="probe"), lock_fd=lock.fd) as owner:
            return measure_all_reduce(order, settings.engine.python, owner, env, settings.node.name, engine)
    finally:
        lock.release()
