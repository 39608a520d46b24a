"""The launch record: what one life of one server process gave. Schema version 1, documented by its own JSON schema
(`python -m runner.records.schema` prints it), validated whenever a record is read.

Times named `*_at` are Unix seconds; all durations are seconds unless the name says `_ms`."""

import json
from typing import Any, Literal

from pydantic import Field

from runner.records.metrics import MEASURES_VERSION
from runner.spec.base import Strict

SCHEMA_VERSION = 1

Grade = Literal["observed", "resolved", "contradicted"]
Purpose = Literal["measure", "prime", "screen", "smoke", "confirm", "noise"]
Outcome = Literal["ok", "rejected", "failed", "invalid", "interrupted"]
RefusedAt = Literal["rule", "resolve", "start"]


class EngineIdentity(Strict):
    """Which engine served. `build` is a hash over version, interpreter packages and source; equal builds may be pooled."""

    kind: Literal["sglang", "container", "simulated", "attached"]
    version: str
    build: str
    simulated: bool = False
    python: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)


class Evidence(Strict):
    """Was one factor's level in force in one launch? `proof` is the log line, field or probe that says so."""

    factor: str
    level: str
    grade: Grade
    proof: str
    source: str = Field(default="", description="log, debug_log, server_info, metrics, probe, trace or none")
    line: int | None = Field(default=None, description="line of server.log, from 1")


class Failure(Strict):
    """Why a launch did not serve; `kind` is one of the classes of `engines/diagnose`."""

    kind: str
    confidence: float = Field(ge=0, le=1)
    line: str = ""
    cause: str = ""
    remedy: str = ""
    retry: Literal["no", "once", "at_once", "after_cleanup", "end_node"] = "no"
    refused_at: RefusedAt | None = None
    stage: str = ""
    exit_code: int | None = None


class Fingerprint(Strict):
    """Output of the fixed guard prompts: per prompt the prompt log-probabilities and the greedy token ids.

    `state`: usable, or why nothing can be told (constant log-probabilities of dummy weights: `cannot_tell`)."""

    prompts_hash: str
    logprobs: tuple[tuple[float, ...], ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    state: Literal["usable", "cannot_tell", "nan", "wrong_length", "not_taken"] = "usable"
    note: str = ""
    task_score: float | None = None


class Counts(Strict):
    """Requests of a phase by what became of them. `sent` is the sum of the others."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    stopped_early: int = 0
    truncated: int = Field(default=0, description="ended without [DONE]")
    lost_tokens: int = 0
    retracted: int = 0


class ClientFitness(Strict):
    """Was the client good enough? Compared with `Protocol.limits`."""

    dispatch_lag_p99_ms: float = 0.0
    loop_stall_max_ms: float = 0.0
    cpu_share: float = 0.0
    asked_rate: float | None = None
    achieved_rate: float | None = None
    littles_law_residual: float | None = None
    first_request_s: float = Field(default=0.0, description="from being asked to the first request's first byte")


class Telemetry(Strict):
    """Summary of the GPU and the server during one phase (series are artifacts)."""

    sm_clock_mhz_p50: float | None = None
    memory_clock_mhz_p50: float | None = None
    power_w_mean: float | None = None
    temperature_c_max: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    pcie_tx_gb_s: float | None = None
    pcie_rx_gb_s: float | None = None
    nvlink_tx_gb_s: float | None = None
    nvlink_rx_gb_s: float | None = None
    memory_used_gb_max: float | None = None
    foreign_processes: int = 0
    running_requests_mean: float | None = None
    queued_requests_max: float | None = None
    accept_length: float | None = None
    retractions: float | None = None


class PhaseRecord(Strict):
    """One load level inside a launch. `metrics` keys are names of `records/metrics.py`."""

    phase: str
    valid: bool
    invalid_reasons: tuple[str, ...] = ()
    steadiness: Literal["steady", "cold", "unproven", "changed"] = "unproven"
    concurrency: int | None = None
    rate: float | None = None
    dataset: str = "random_ids"
    started_at: float = 0.0
    window_s: float = 0.0
    warmup_s: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)
    within_pct: dict[str, float] = Field(
        default_factory=dict, description="metric -> its standard error inside this phase (batch means over requests), percent"
    )
    counts: Counts = Counts()
    client: ClientFitness = ClientFitness()
    telemetry: Telemetry = Telemetry()
    cached_share: float | None = None
    artifacts: dict[str, str] = Field(default_factory=dict, description="name -> path relative to the study")


class Command(Strict):
    """What was started, to be repeated by hand. Secrets are replaced before it is built."""

    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict, description="what the runner set, not the whole environment")
    cwd: str | None = None
    overlay: str | None = None
    patches: dict[str, str] = Field(default_factory=dict, description="patch name -> hash")


class Soak(Strict):
    """How the GPUs were brought into the protocol's temperature and clock band before the load. One value a GPU, null where it does
    not say; `heated`: short unmeasured loads that were driven; `reason`: what was still outside at the end."""

    reached: bool
    seconds: float
    heated: int = 0
    temperature_c: tuple[float | None, ...] = ()
    sm_clock_mhz: tuple[float | None, ...] = ()
    reason: str = ""


class LaunchRecord(Strict):
    """One launch. The unit of replication."""

    schema_version: int = Field(default=SCHEMA_VERSION, alias="schema")
    measures: int = MEASURES_VERSION
    study: str
    launch: str = Field(description="id, unique in the study: b<block>-p<position>-<arm>-a<attempt>")
    arm: str
    levels: dict[str, str]
    block: int
    position: int = 0
    attempt: int = 1
    purpose: Purpose = "measure"
    node: str = ""
    host: str = ""
    boot_id: str = ""
    engine: EngineIdentity
    command: Command
    started_at: float
    ended_at: float
    previous_arm: str | None = None
    idle_gap_s: float | None = None
    stages: dict[str, float] = Field(
        default_factory=dict, description="seconds by stage: start, weights, graphs, ready, fingerprint, warmup, measure, stop ..."
    )
    gpu_seconds: float = 0.0
    outcome: Outcome
    failure: Failure | None = None
    resolved: dict[str, Any] = Field(default_factory=dict, description="the part of /server_info that decides equality and fairness")
    unfair: tuple[str, ...] = Field(default=(), description="resolved pool, graphs or limits that differ from the baseline's")
    evidence: tuple[Evidence, ...] = ()
    fingerprint: Fingerprint | None = None
    soak: Soak | None = Field(default=None, description="null: none was asked for")
    phases: tuple[PhaseRecord, ...] = ()
    artifacts: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def phase(self, name: str) -> PhaseRecord | None:
        return next((phase for phase in self.phases if phase.phase == name), None)


def json_schema() -> dict[str, Any]:
    """The documented schema of a launch record."""
    return LaunchRecord.model_json_schema(by_alias=True)


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))
