"""Nodes without servers: each launch gives a record made from a table. For tests of scheduling and of the loop."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from runner.execution.executor import NodeHandle, NodeLost
from runner.execution.job import Event, LaunchJob, NodeFacts, NodeOrder
from runner.records.schema import EngineIdentity, Failure, LaunchRecord, PhaseRecord
from tests.records.example import launch_record

ENGINE = EngineIdentity(kind="simulated", version="0.5.9", build="x", simulated=True)
TPOT = {"baseline": 20.0, "fast": 19.0, "slow": 21.0}


def record_of(job: LaunchJob, rng: np.random.Generator, host: str, **changes: Any) -> LaunchRecord:
    """A measured launch: TPOT of TPOT[arm] with 0.2 % noise, one second long."""
    order = job.order
    value = TPOT.get(order.arm, 20.0) * float(np.exp(rng.normal(0, 0.002)))
    phases = tuple(PhaseRecord(phase=name, valid=True, concurrency=1, metrics={"tpot_p50_ms": value}) for name in job.phases)
    now = time.time()
    fields = {
        "study": order.study,
        "launch": order.launch,
        "arm": order.arm,
        "levels": order.levels,
        "block": order.block,
        "position": order.position,
        "attempt": job.attempt,
        "purpose": job.purpose,
        "host": host,
        "boot_id": host,
        "engine": ENGINE,
        "started_at": now - 1,
        "ended_at": now,
        "gpu_seconds": 8.0,
        "phases": phases,
        "resolved": {"max_total_num_tokens": 1000},
    }
    return launch_record(**{**fields, **changes})


def failed(kind: str, retry: str, **more: Any) -> dict[str, Any]:
    """Changes that make a launch a failed one."""
    failure = Failure.model_validate({"kind": kind, "confidence": 1.0, "retry": retry, "line": f"line of {kind}", **more})
    return {"outcome": "rejected" if more.get("refused_at") else "failed", "failure": failure, "phases": (), "resolved": {}}


class FakeNode:
    """`behaviour(job, number)` returns changes of the record, or raises (NodeLost, ClientBroken)."""

    def __init__(self, name: str, behaviour: Callable[[LaunchJob, int], dict[str, Any]] = lambda job, number: {}) -> None:
        self.name, self._behaviour = name, behaviour
        self._numbers = itertools.count()
        self._rng = np.random.default_rng(abs(hash(name)) % 1000)
        self.jobs: list[LaunchJob] = []
        self.lost = False

    def describe(self) -> NodeFacts:
        return NodeFacts(host=self.name, boot_id=self.name, engine=ENGINE)

    def topology(self) -> str:
        return f"matrix of {self.name}"

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        if self.lost:
            raise NodeLost(f"{self.name} is gone")
        self.jobs.append(job)
        yield Event(kind="stage", launch=job.order.launch, stage="start")
        changes = self._behaviour(job, next(self._numbers))
        record = record_of(job, self._rng, self.name, **changes)
        for phase in record.phases:
            yield Event(kind="phase", launch=record.launch, phase=phase)
        yield Event(kind="launch", launch=record.launch, record=record)

    def close(self) -> None: ...


class FakeExecutor:
    kind = "fake"

    def __init__(self, nodes: list[FakeNode], spare: list[FakeNode] | None = None) -> None:
        self.nodes, self.spare = nodes, spare or []

    def open(self, order: NodeOrder, nodes: int | None) -> list[NodeHandle]:
        return list(self.nodes)

    def replace(self, order: NodeOrder) -> NodeHandle | None:
        return self.spare.pop() if self.spare else None

    def close(self) -> None: ...


class Silent:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.started: list[str] = []

    def launch_started(self, slot: Any, number: int, total: int, node: str) -> None:
        self.started.append(slot.launch)

    def stage(self, launch: str, stage: str) -> None: ...

    def phase_done(self, launch: str, record: PhaseRecord) -> None: ...

    def launch_done(self, record: LaunchRecord) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)
