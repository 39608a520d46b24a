"""What the driver sends to a node, and what comes back while it works."""

from typing import Any, Literal

from pydantic import Field

from runner.engines.base import LaunchOrder
from runner.records.schema import EngineIdentity, LaunchRecord, PhaseRecord, Purpose
from runner.spec.base import Strict
from runner.spec.engine import EngineSpec
from runner.spec.factor import FactorSpec
from runner.spec.node import NodeSpec
from runner.spec.protocol import Protocol
from runner.spec.workload import WorkloadSpec


class LaunchJob(Strict):
    """One launch to be made: start, prove, measure, stop. Phases are names of `workload.phases`, in order."""

    order: LaunchOrder
    purpose: Purpose
    attempt: int = 1
    phases: tuple[str, ...] = ()
    workload: WorkloadSpec
    protocol: Protocol
    factors: dict[str, FactorSpec] = Field(default_factory=dict)
    baseline_levels: dict[str, str] = Field(default_factory=dict)
    baseline_resolved: dict[str, Any] | None = None
    previous_arm: str | None = None
    previous_end: float | None = Field(default=None, description="Unix seconds, by the clock of the node's worker")
    study_folder: str
    profile: bool = False


class NodeOrder(Strict):
    """What a node worker needs to take a node into its hands."""

    study: str
    engine: EngineSpec
    node: NodeSpec
    lock_dir: str | None = None
    busy_wait_s: float = 0.0
    profile_folder: str | None = None
    not_before: float = Field(default=0.0, description="Unix seconds: no record is dated before, wherever a clock was set back")


class NodeFacts(Strict):
    """What the worker found on its node. `driver` and `boot_id` must not change inside a block."""

    host: str
    boot_id: str
    engine: EngineIdentity
    gpus: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = Field(default=(), description="name of each GPU: nodes with other GPUs are never pooled")
    driver: str | None = None
    probe: dict[str, Any] = Field(default_factory=dict)
    resumable: bool = True


class Event(Strict):
    """One step of a launch. `launch` ends the stream of a job."""

    kind: Literal["stage", "phase", "launch", "note"]
    launch: str
    stage: str = ""
    phase: PhaseRecord | None = None
    record: LaunchRecord | None = None
    text: str = ""
    files: dict[str, bytes] = Field(default_factory=dict, description="relative name -> content, only when the node shares no disk")
