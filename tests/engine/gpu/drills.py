"""Failures on purpose against a real engine, through the product's own launch path: a port taken between check and bind, and a
scheduler killed under load. Prints one JSON object a drill; exit code 1 when a drill did not end as it must.

    python tests/engine/gpu/drills.py --study STUDY_FOLDER --out FOLDER [port] [scheduler]

Engine, model, node, workload, protocol and options are those of the baseline of a study that ran there (its plan.json, config.json
and first order.json), so that the drill starts what the study started."""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from runner.engines import process
from runner.engines.gpus import Gpus
from runner.execution.job import Event, LaunchJob, NodeOrder
from runner.execution.worker import NodeWorker
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord


def job_of(study: Path, name: str, out: Path, phases: tuple[str, ...]) -> LaunchJob:
    """A launch of the study's baseline under another name. The study's first launch order gives the engine as it was started."""
    plan = Plan.model_validate_json((study / "plan.json").read_text())
    config = json.loads((study / "config.json").read_text())
    made = sorted(study.glob("launches/*/order.json"))
    order = next(content for content in (json.loads(path.read_text()) for path in made) if content["arm"] == plan.baseline)
    order |= {"launch": name, "study": f"drill-{name}", "folder": str((out / name).resolve())}
    return LaunchJob.model_validate(
        {
            "order": order,
            "purpose": "screen",
            "phases": phases,
            "workload": config["workload"],
            "protocol": config["protocol"] | {"fingerprint_prompts": 0},
            "study_folder": str(out.resolve()),
        }
    )


def run(job: LaunchJob, during: Any) -> LaunchRecord:
    """The launch, with `during(worker, event)` called on every event."""
    worker = NodeWorker(
        NodeOrder(study=job.order.study, engine=job.order.engine, node=job.order.node, lock_dir=str(Path(job.study_folder) / "lock"))
    )
    try:
        record = None
        for event in worker.launch(job):
            during(worker, event)
            record = event.record or record
        assert record is not None
        return record
    finally:
        worker.close()


def take_port(worker: NodeWorker, event: Event, held: list[socket.socket]) -> None:
    """Binds the port that the starting server was given, before the server does."""
    if event.kind != "stage" or event.stage in ("start", "stop") or held:
        return
    port = next(
        (
            int(words[words.index("--port") + 1])
            for seen in worker_tree(worker)
            if "--port" in (words := process.command_line(seen).split())
        ),
        None,
    )
    if port is not None:
        held.append(socket.create_server(("127.0.0.1", port)))
        print(f"took port {port} while the server was in stage {event.stage}", file=sys.stderr)


def worker_tree(worker: NodeWorker) -> list[int]:
    assert worker._owner is not None
    return [pid for child in worker._owner._processes for pid in child.tree()]


def kill_scheduler(worker: NodeWorker, event: Event, killed: list[int]) -> None:
    """SIGKILL to one scheduler a second after the phase has begun."""
    if event.kind != "stage" or not event.stage.startswith("phase") or killed:
        return
    schedulers = [pid for pid in worker_tree(worker) if "scheduler" in process.command_line(pid)]
    killed.extend(schedulers[:1])
    timer = threading.Timer(1.5, kill_all, [list(killed)])
    timer.daemon = True
    timer.start()


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def result(name: str, record: LaunchRecord, wanted: tuple[str, ...], started: float) -> dict[str, Any]:
    gpus = Gpus.visible()
    held = {uuid: gpus.memory_used(uuid) for uuid in gpus.uuids}
    kind = record.failure.kind if record.failure else None
    return {
        "drill": name,
        "outcome": record.outcome,
        "class": kind,
        "line": record.failure.line if record.failure else "",
        "as_it_must": record.outcome == "failed" and kind in wanted,
        "seconds": round(time.monotonic() - started, 1),
        "gpu_bytes_after": held,
        "foreign_after": len(gpus.foreign()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--phase", default="decode_c16")
    parser.add_argument("names", nargs="*", default=["port", "scheduler"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = []
    if "port" in arguments.names:
        held: list[socket.socket] = []
        started = time.monotonic()
        record = run(job_of(arguments.study, "port", arguments.out, ()), lambda worker, event: take_port(worker, event, held))
        results.append(result("port taken between check and bind", record, ("port_in_use",), started))
        for taken in held:
            taken.close()
        print(json.dumps(results[-1]), flush=True)
    if "scheduler" in arguments.names:
        killed: list[int] = []
        started = time.monotonic()
        job = job_of(arguments.study, "scheduler", arguments.out, (arguments.phase,))
        record = run(job, lambda worker, event: kill_scheduler(worker, event, killed))
        results.append(result("scheduler killed under load", record, ("scheduler_died",), started))
        print(json.dumps(results[-1]), flush=True)
    (arguments.out / "drills.json").write_text(json.dumps(results, indent=1))
    return 0 if all(item["as_it_must"] for item in results) else 1


if __name__ == "__main__":
    sys.exit(main())
