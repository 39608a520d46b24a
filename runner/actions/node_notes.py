"""What the study's node is, written beside the records when the study begins: topology with the doctor's findings, and the probe."""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from runner.actions.ground import Ground
from runner.engines.probing.stored import stored_probe
from runner.errors import UserError
from runner.records.files import write_json, write_text
from runner.records.paths import StudyPaths


def note_node(ground: Ground, paths: StudyPaths, nodes: Sequence[dict[str, Any]]) -> threading.Thread:
    """Starts the notes beside the first launch (nvidia-smi needs seconds). `nodes`: facts of the node workers. What an earlier
    start of the study wrote stays."""
    thread = threading.Thread(target=_write, args=(ground, paths, nodes), name="node-notes", daemon=True)
    thread.start()
    return thread


def _write(ground: Ground, paths: StudyPaths, nodes: Sequence[dict[str, Any]]) -> None:
    with contextlib.suppress(OSError, UserError):  # a note that cannot be written or a damaged probe ends no study
        if not paths.topology.exists():
            write_text(paths.topology, topology_text(ground, nodes))
        probe = None if ground.simulated else stored_probe(ground.root, ground.settings.node.name)
        if probe is not None and not paths.probe.exists():
            write_json(paths.probe, probe.model_dump(mode="json", by_alias=True))


def topology_text(ground: Ground, nodes: Sequence[dict[str, Any]], host: str | None = None) -> str:
    """Where the node is this machine: the doctor's findings on GPUs, links, clocks, then `nvidia-smi topo -m` as it is. Elsewhere:
    that it is not known, and how to know it."""
    node, here = ground.settings.node, host or socket.gethostname()
    if ground.simulated:
        return f"SIMULATED: node {node.name} is only described (conf/node); no GPU of this machine was measured.\n"
    elsewhere = sorted({str(facts.get("host")) for facts in nodes} - {here})
    if elsewhere:
        return f"Not recorded: the node is {', '.join(elsewhere)}, the study was driven from {here}. Run action=doctor on the node.\n"
    from runner.actions.checks.facts import gpu_facts
    from runner.actions.doctor import doctor_text, hardware

    gpus = gpu_facts()
    when = time.strftime("%Y-%m-%d %H:%M %Z")
    parts = [f"{here}, {when}, node file {node.name}", doctor_text(hardware(gpus, node, ground.kind), colours=False)]
    parts += [f"nvidia-smi topo -m\n{gpus.topology}"] if gpus.topology else []
    return "\n\n".join(parts) + "\n"
