"""One launch, from start to stop, on the node: start, ready, describe, evidence, fingerprint, phases, stop, record.

The order is fixed by design section 5. Whatever goes wrong becomes a LaunchRecord with its outcome; only a broken client or
an interrupt leaves this function as an exception, and then the server is stopped first."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.engines.base import Engine, LaunchFailed, Owner, Server
from runner.engines.evidence import Sources, engine_chose, judge_evidence
from runner.engines.evidence.resolved_view import resolved_view, unfair
from runner.engines.gpus import Gpus
from runner.engines.guard import GuardBroken
from runner.execution.job import Event, LaunchJob, NodeFacts
from runner.execution.logs import compress, set_aside
from runner.execution.soak import HEAT_S, is_asked, soak
from runner.execution.treatment import Overlays
from runner.execution.vigil import Vigil
from runner.loadgen.base import ClientBroken, GuardOrder, LoadDriver, PhaseOrder
from runner.records.clock import SteadyClock
from runner.records.files import write_json, write_text
from runner.records.paths import LaunchPaths
from runner.records.schema import Command, Evidence, Failure, Fingerprint, LaunchRecord, Outcome, PhaseRecord, Soak
from runner.records.secrets import scrub_mapping

Emit = Callable[[Event], None]


@dataclass
class Stopwatch:
    """Seconds by stage, from one monotonic clock."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


@dataclass
class _Launch:
    """One launch: what it needs, and what it has gathered so far."""

    job: LaunchJob
    load: LoadDriver
    facts: NodeFacts
    emit: Emit
    paths: LaunchPaths
    server: Server | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)
    outcome: Outcome = "ok"
    failure: Failure | None = None
    info: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    fingerprint: Fingerprint | None = None
    soak: Soak | None = None
    phases: list[PhaseRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    artifacts: dict[str, str] = field(default_factory=dict)
    patches: dict[str, str] = field(default_factory=dict)

    def stage(self, name: str) -> None:
        self.emit(Event(kind="stage", launch=self.job.order.launch, stage=name))

    def patch(self, overlays: Overlays) -> None:
        """Makes the arm's overlay of the engine's source, proves it, and puts it into the order."""
        self.stage("patch")
        with self.watch.stage("patch"):
            overlay = overlays.of(self.job.order)
        if overlay is not None:
            write_text(self.paths.folder / "overlay.diff", overlay.diff)
            self.artifacts["overlay_diff"] = _relative(self.paths.folder / "overlay.diff", self.job)
            self.patches = dict.fromkeys(self.job.order.patches, overlay.digest)
            self.job = self.job.model_copy(update={"order": self.job.order.model_copy(update={"overlay": overlay.path})})

    def serve(self, engine: Engine, owner: Owner) -> None:
        """Start, ready, description, everything that is measured, evidence. Raises LaunchFailed."""
        self.stage("start")
        with self.watch.stage("start"):
            self.server = server = engine.start(self.job.order, owner)
            ready = server.wait_ready(self.stage)
        self.watch.seconds.update({f"start_{name}": seconds for name, seconds in ready.stages.items()})
        self.stage("describe")
        with self.watch.stage("describe"):
            self.info = scrub_mapping(server.describe())
            write_json(self.paths.server_info, _jsonable(self.info))
        self.artifacts["server_info"] = _relative(self.paths.server_info, self.job)
        with Vigil(server, background=ready.pid is not None) as vigil:
            kernels = self.measure(server, ready.pid, vigil)
        with self.watch.stage("evidence"):
            metrics = server.metrics()
            if metrics:
                write_text(self.paths.metrics, metrics)
            self.evidence = gather_evidence(self.job, server.log, self.info, metrics, self.facts, kernels)

    def measure(self, server: Server, pid: int | None, vigil: Vigil) -> tuple[str, ...] | None:
        """Output guard, phases, profile. Returns the profile's kernel names. Raises LaunchFailed as soon as the server has died."""
        job = self.job
        if job.protocol.fingerprint_prompts:
            self.stage("fingerprint")
            with self.watch.stage("fingerprint"):
                self.fingerprint = self.load.fingerprint(
                    GuardOrder(
                        url=server.url,
                        model=job.order.model,
                        prompts=job.protocol.fingerprint_prompts,
                        tokens=job.protocol.fingerprint_tokens,
                        tasks=job.workload.guard_tasks,
                    )
                )
            vigil.check("fingerprint")
        if job.phases and is_asked(job.protocol):
            self.bring_into_band(server, pid, vigil)
        for index, name in enumerate(job.phases):
            self.stage(f"phase {name}")
            with self.watch.stage("phases"):
                record = self.load.run(_phase_order(job, name, index, server.url, pid, self.facts))
            self.phases.append(record)
            self.emit(Event(kind="phase", launch=job.order.launch, phase=record))
            vigil.check(f"phase {name}")
        return self.profile(server, pid) if job.profile and job.phases else None

    def bring_into_band(self, server: Server, pid: int | None, vigil: Vigil) -> None:
        """The protocol's soak. The load that heats is the first phase's, with prompts of its own; its figures are thrown away."""
        job, first = self.job, self.job.phases[0]
        scale = min(job.protocol.phase_scale, HEAT_S / max(job.workload.phases[first].seconds, 1e-3))
        streams = itertools.count(len(job.phases))

        def heat() -> None:
            order = _phase_order(job, first, next(streams), server.url, pid, self.facts)
            self.load.run(order.model_copy(update={"name": "soak", "scale": scale, "warmup": False, "scrape": False}))
            vigil.check("soak")

        self.stage("soak")
        with self.watch.stage("soak"):
            self.soak = soak(Gpus.visible().states, job.protocol, heat)
        if not self.soak.reached:
            self.notes.append(f"soak: after {self.soak.seconds:.0f} s not in the band: {self.soak.reason}")

    def profile(self, server: Server, pid: int | None) -> tuple[str, ...] | None:
        """Names of all kernels that ran in a short profile of the last decode phase (else the first phase); None without a trace."""
        job = self.job
        name = next((phase for phase in reversed(job.phases) if job.workload.phases[phase].kind == "decode"), job.phases[0])
        self.stage("profile")
        with self.watch.stage("profile"):
            try:
                order = _phase_order(job, name, 0, server.url, pid, self.facts)
                profile = self.load.profile(order, gpu=bool(self.facts.gpus))
            except (RuntimeError, TimeoutError, ValueError) as error:
                self.notes.append(f"no profile: {error}")
                return None
        self.artifacts["profile"] = _relative(self.paths.profile(name), job)
        return profile.names


def run_launch(
    job: LaunchJob,
    engine: Engine,
    owner: Owner,
    load: LoadDriver,
    facts: NodeFacts,
    emit: Emit,
    overlays: Overlays | None = None,
    clock: Callable[[], float] | None = None,
) -> LaunchRecord:
    """Blocks until the server is gone again. `clock`: Unix seconds without jumps (records/clock.py).
    Raises ClientBroken (nothing is concluded) and KeyboardInterrupt."""
    paths = LaunchPaths(Path(job.order.folder))
    paths.folder.mkdir(parents=True, exist_ok=True)
    set_aside(paths.server_log)
    write_json(paths.order, job.order.model_dump(mode="json", by_alias=True))
    clock = clock or SteadyClock()
    started = clock()
    launch = _Launch(job, load, facts, emit, paths)
    try:
        if overlays is not None and job.order.patches:
            launch.patch(overlays)
        launch.serve(engine, owner)
    except LaunchFailed as failed:
        _fail(launch, failed)
    except GuardBroken as broken:
        raise ClientBroken(f"the guard of the node's processes: {broken}") from broken
    finally:
        if launch.server is not None:
            launch.stage("stop")
            with launch.watch.stage("stop"):
                stopped = launch.server.stop()
            if stopped.how in ("killed", "stuck"):
                launch.notes.append(f"stop: {stopped.how} after {stopped.seconds:.1f} s")
    return _record(launch, started, clock())


def _phase_order(job: LaunchJob, name: str, index: int, url: str, pid: int | None, facts: NodeFacts) -> PhaseOrder:
    """Prompts depend on (workload seed, block, phase) alone: the same for every arm of a block, new in the next block."""
    phase = job.workload.phases[name]
    return PhaseOrder(
        name=name,
        phase=phase.model_copy(update={"slo": phase.slo or job.workload.slo}),
        url=url,
        model=job.order.model,
        seed=job.workload.seed,
        block=job.order.block,
        stream=index,
        limits=job.protocol.limits,
        scale=job.protocol.phase_scale,
        warmup_output=job.protocol.warmup_output,
        folder=job.order.folder,
        study_folder=job.study_folder,
        server_pid=pid,
        gpu_uuids=facts.gpus,
        simulated=facts.engine.simulated,
    )


def gather_evidence(
    job: LaunchJob, log: Path, info: dict[str, Any], metrics: str, facts: NodeFacts, kernels: tuple[str, ...] | None = None
) -> tuple[Evidence, ...]:
    """A grade for every factor whose level differs from the baseline's; the baseline's own levels are graded too."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    sources = Sources(
        log=text,
        debug="debug" in str(job.order.options.get("log-level", "")),
        server_info=info,
        metrics=metrics or None,
        probe=facts.probe or None,
        trace=kernels,
    )
    version = str(info.get("version") or facts.engine.version)
    graded = [
        judge_evidence(job.factors[factor], level, sources, version) for factor, level in job.order.levels.items() if factor in job.factors
    ]
    return (*graded, *engine_chose(job.factors, job.order.levels, sources, version))


def _fail(state: _Launch, failed: LaunchFailed) -> None:
    state.failure = failed.failure
    state.outcome = "rejected" if failed.failure.refused_at is not None else "failed"
    state.watch.seconds.update({f"start_{name}": seconds for name, seconds in failed.stages.items() if name not in state.watch.seconds})


def _record(state: _Launch, started: float, ended: float) -> LaunchRecord:
    job, facts, paths = state.job, state.facts, state.paths
    order = job.order
    resolved = resolved_view(state.info) if state.info else {}
    if state.server is not None and state.server.log.exists():
        state.artifacts["server_log"] = _relative(compress(state.server.log), job)
    command = state.server.command if state.server is not None else Command(argv=())
    if state.patches:
        command = command.model_copy(update={"patches": state.patches})
    measured = [phase for phase in state.phases if phase.valid]
    outcome: Outcome = "invalid" if state.outcome == "ok" and job.phases and not measured else state.outcome
    record = LaunchRecord(
        study=order.study,
        launch=order.launch,
        arm=order.arm,
        levels=order.levels,
        block=order.block,
        position=order.position,
        attempt=job.attempt,
        purpose=job.purpose,
        node=order.node.name,
        host=facts.host,
        boot_id=facts.boot_id,
        engine=facts.engine,
        command=command,
        started_at=started,
        ended_at=ended,
        previous_arm=job.previous_arm,
        idle_gap_s=None if job.previous_end is None else max(0.0, started - job.previous_end),
        stages={name: round(seconds, 4) for name, seconds in state.watch.seconds.items()},
        gpu_seconds=(ended - started) * max(1, order.node.gpus),
        outcome=outcome,
        failure=state.failure,
        resolved=resolved,
        unfair=unfair(resolved, job.baseline_resolved) if resolved and job.baseline_resolved else (),
        evidence=state.evidence,
        fingerprint=state.fingerprint,
        soak=state.soak,
        phases=tuple(state.phases),
        artifacts=state.artifacts,
        notes=tuple(state.notes),
    )
    write_json(paths.record, record.model_dump(mode="json", by_alias=True))
    return record


def _relative(path: Path, job: LaunchJob) -> str:
    return str(path.relative_to(job.study_folder)) if path.is_relative_to(job.study_folder) else path.name


def _jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str).replace("NaN", "null").replace("-Infinity", "null").replace("Infinity", "null"))


__all__ = ["ClientBroken", "Emit", "Stopwatch", "gather_evidence", "run_launch"]
