"""What the study's node is, written beside the records when the study begins: topology with the doctor's findings, and the probe."""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence

from runner.actions.ground import Ground
from runner.engines.probing.stored import stored_probe
from runner.errors import UserError
from runner.execution.executor import NodeHandle
from runner.records.files import write_json, write_text
from runner.records.paths import StudyPaths


def note_node(ground: Ground, paths: StudyPaths, nodes: Sequence[NodeHandle]) -> threading.Thread:
    """Starts the notes beside the first launch (nvidia-smi needs seconds). What an earlier start of the study wrote stays."""
    thread = threading.Thread(target=_write, args=(ground, paths, nodes), name="node-notes", daemon=True)
    thread.start()
    return thread


def _write(ground: Ground, paths: StudyPaths, nodes: Sequence[NodeHandle]) -> None:
    with contextlib.suppress(OSError, UserError):  # a note that cannot be written or a damaged probe ends no study
        if not paths.topology.exists():
            write_text(paths.topology, topology_text(ground, nodes))
        probe = None if ground.simulated else stored_probe(ground.root, ground.settings.node.name)
        if probe is not None and not paths.probe.exists():
            write_json(paths.probe, probe.model_dump(mode="json", by_alias=True))


def topology_text(ground: Ground, nodes: Sequence[NodeHandle], host: str | None = None) -> str:
    """Where the node is this machine: the doctor's findings on GPUs, links, clocks, then `nvidia-smi topo -m` as it is. Of other
    machines: the matrix that their workers read, and how to know the rest."""
    node, here = ground.settings.node, host or socket.gethostname()
    if ground.simulated:
        return f"SIMULATED: node {node.name} is only described (conf/node); no GPU of this machine was measured.\n"
    if any(handle.describe().host != here for handle in nodes):
        return "\n\n".join([_elsewhere(handle, here) for handle in nodes]) + "\n"
    from runner.actions.checks.facts import gpu_facts
    from runner.actions.doctor import doctor_text, hardware

    gpus = gpu_facts()
    when = time.strftime("%Y-%m-%d %H:%M %Z")
    parts = [f"{here}, {when}, node file {node.name}", doctor_text(hardware(gpus, node, ground.kind), colours=False)]
    parts += [f"nvidia-smi topo -m\n{gpus.topology}"] if gpus.topology else []
    return "\n\n".join(parts) + "\n"


def _elsewhere(handle: NodeHandle, here: str) -> str:
    """What is known of a node by its worker; the study was driven from the machine `here`."""
    facts = handle.describe()
    models = ", ".join(f"{facts.gpu_models.count(name)} x {name}" for name in dict.fromkeys(facts.gpu_models)) or "no GPU seen"
    head = f"{facts.host}: {models}, driver {facts.driver or 'not told'}; driven from {here}. For links, clocks and power: action=doctor there."
    matrix = handle.topology()
    return f"{head}\n\nnvidia-smi topo -m\n{matrix}" if matrix else f"{head} Its topology is not told (no nvidia-smi there)."
