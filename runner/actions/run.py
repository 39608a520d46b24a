"""`action=run`: plan, launch, measure, decide, show. What a study does from the first line to the exit code."""

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from runner.actions.ground import Ground, find_ground, make_plan
from runner.actions.nightly import NightWatch, gpus_in_use, night_name, open_patiently
from runner.actions.node_notes import note_node
from runner.actions.settle import keep_floor, settle
from runner.actions.signals import StopRequest
from runner.config import Settings
from runner.errors import NodeBusy, NotFinished, RunnerError, UserError
from runner.execution.disk import demand_room
from runner.execution.executor import Executor
from runner.execution.job import NodeOrder
from runner.execution.loop import Recipe, StudyLoop
from runner.execution.ranks import demand_whole
from runner.execution.scheduler import Scheduler, Slot
from runner.execution.study import OpenStudy, open_study
from runner.records.files import write_json
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord, PhaseRecord, Purpose
from runner.records.secrets import scrub_mapping
from runner.records.words import INTERRUPTED
from runner.reporting.progress import Progress
from runner.spec.engine import EngineSpec
from runner.tracking.launcher import TrackingProcess


def perform(settings: Settings, overrides: list[str]) -> int:
    if not (settings.grid or settings.include or settings.aa or settings.baseline or settings.engine.kind == "attached"):
        raise UserError("there is no grid; choose an experiment, for example: python -m runner +experiment=smoke")
    ground = find_ground(settings, need_engine=True)
    stop = StopRequest()
    stop.install()
    executor = make_executor(ground)  # Ray needs seconds to start: begin before the plan
    try:
        plan = make_plan(ground)
        agree(settings, plan)
        demand_room(ground.root.studies, plan.estimate.launches, plan.simulated)
        return run_study(ground, plan, executor, stop, overrides)
    finally:
        executor.close()
        stop.install()


def make_executor(ground: Ground) -> Executor:
    execution, node = ground.settings.execution, ground.settings.node
    demand_whole(node)
    if execution.executor == "inline":
        if node.machines > 1:
            raise UserError(f"node {node.name} spans {node.machines} machines: that needs execution.executor=ray and a cluster's address")
        from runner.execution.inline import InlineExecutor

        return InlineExecutor()
    from runner.execution.ray_executor import RayExecutor

    return RayExecutor(execution.ray, gpus=node.gpus, pretend_gpus=ground.simulated, machines=node.machines)


def agree(settings: Settings, plan: Plan) -> None:
    """Asks above the limit of GPU hours. Raises UserError when the answer is no or nobody can be asked."""
    hours = plan.estimate.estimate / 60
    if plan.simulated or settings.yes or hours <= settings.protocol.ask_above_gpu_hours:
        return
    what = f"this study takes about {hours:.1f} GPU hours ({plan.estimate.low / 60:.1f} to {plan.estimate.high / 60:.1f})"
    if not sys.stdin.isatty():
        raise UserError(f"{what}, above protocol.ask_above_gpu_hours={settings.protocol.ask_above_gpu_hours}; agree with yes=true")
    if input(f"{what}. Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError("not started")


def run_study(ground: Ground, plan: Plan, executor: Executor, stop: StopRequest, overrides: list[str]) -> int:
    settings = ground.settings
    config = scrub_mapping(settings.model_dump(mode="json", by_alias=True)) | {"overrides": overrides}
    name = settings.study.name or (night_name(ground.root, plan, settings.study.new) if settings.nightly else None)
    study = open_study(ground.root, plan, name=name, new=settings.study.new, config=config)
    night: NightWatch | None = None
    broken: int | None = None  # the exit code of a night that is over because its baseline cannot serve
    tracking = TrackingProcess(ground.root, study.paths, settings.tracking)
    try:
        if settings.tracking.enabled:
            tracking.start()
        night = NightWatch(ground, study) if settings.nightly else None
        scheduler = measure(ground, study, executor, stop, tracking, night)
        complete(ground, study, scheduler)
        if night is not None:
            night.conclude(scheduler.launches)
    except BaseException as error:
        broken = night.broke(error) if night is not None and isinstance(error, RunnerError) else None
        if broken is None:
            tracking.part(isinstance(error, KeyboardInterrupt))
            if isinstance(error, NodeBusy):
                study.discard()
            raise
    finally:
        study.close()
    freed = threading.Thread(target=executor.close, name="free-the-node")  # the node is free while the report is written
    freed.start()
    try:
        code = settle(ground, study.paths, tracking)
    finally:
        freed.join()
    if night is None:
        return code
    return night.tell(code) if broken is None else broken


def prepare_views() -> None:
    """Imports what the report needs, while launches run: a second or two less at the end."""
    with contextlib.suppress(ImportError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        import matplotlib.figure  # noqa: F401
        import scipy.stats  # noqa: F401

        import runner.analysis.judge
        import runner.reporting.html  # noqa: F401


def measure(
    ground: Ground, study: OpenStudy, executor: Executor, stop: StopRequest, tracking: TrackingProcess, night: NightWatch | None = None
) -> Scheduler:
    """Launches until nothing is open; a night looks a second time at what is suspect. Raises KeyboardInterrupt, NotFinished,
    UserError, NodeBusy."""
    settings, plan = ground.settings, study.plan
    earlier = study.history()
    noise = keep_floor(ground, study.paths, begun=bool(earlier[0]))
    scheduler = Scheduler(plan, settings.protocol, noise, unmeasured(ground, plan))
    if night is not None:
        night.restore(scheduler)
    scheduler.restore(*earlier)
    listener = Shown(settings.execution.quiet, scheduler, plan)
    listener.begin(study, ground)
    order = NodeOrder(
        study=study.paths.name,
        engine=engine_spec(ground),
        node=settings.node,
        lock_dir=settings.execution.lock_dir,
        not_before=study.journal.last_time,
    )
    recipe = Recipe(
        engine=order.engine,
        model=settings.model,
        node=settings.node,
        workload=settings.workload,
        protocol=settings.protocol,
        factors=settings.factors,
        debug_arms=frozenset(debug_arms(settings, plan, ground.version)),
        profile=settings.protocol.profile,
    )
    with listener.progress:
        patience = 60.0 * settings.schedule.busy_wait_minutes if settings.nightly else 0.0
        handles = open_patiently(
            executor,
            order,
            settings.execution.ray.nodes,
            patience,
            stop.asked,
            listener.note,
            occupied=lambda: gpus_in_use(ground.simulated, settings.execution.ray.address) if settings.nightly else (),
        )
        stop.install()  # Ray puts its own handlers
        nodes = [handle.describe().model_dump(mode="json") for handle in handles]
        study.journal.append("nodes", nodes=nodes)
        note_node(ground, study.paths, handles)
        tracking.start()  # not before: its imports would slow the start of Ray
        threading.Thread(target=prepare_views, name="prepare-views", daemon=True).start()
        loop = StudyLoop(study, recipe, scheduler, executor, order, listener, stop.asked)
        try:
            loop.run(handles)
            if night is not None and night.second_look(scheduler, listener.note):
                loop.run([])
        except KeyboardInterrupt:
            study.journal.append("event", text=INTERRUPTED)
            kept = sum(launch.outcome != "interrupted" for launch in scheduler.launches)
            raise KeyboardInterrupt(
                f"{kept} launches are kept; the same command with study.name={study.paths.name} goes on, and action=report "
                f"study.name={study.paths.name} shows what is there"
            ) from None
    return scheduler


def complete(ground: Ground, study: OpenStudy, scheduler: Scheduler) -> None:
    if not scheduler.launches:
        raise NotFinished("no launch was made")
    write_truth(ground, study)
    study.journal.append("study_finished", reason=scheduler.reason, gpu_minutes=round(scheduler.spent_gpu_minutes, 3))


def engine_spec(ground: Ground) -> EngineSpec:
    """The engine as it will be launched: `auto` and a missing version are settled."""
    kind: Any = ground.kind
    return ground.settings.engine.model_copy(update={"kind": kind, "version": ground.version})


def unmeasured(ground: Ground, plan: Plan) -> list[tuple[str, Purpose]]:
    """Launches before the first block. A real engine: the baseline's smoke run, a screen of every arm where the protocol asks
    for it, primes that fill the compile caches. The simulated engine has no caches: only screens, of every arm or of those whose
    proof is printed at debug level alone."""
    protocol = ground.settings.protocol
    others = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    debug = debug_arms(ground.settings, plan, ground.version)
    smoke: list[tuple[str, Purpose]] = [(plan.baseline, "smoke")] if protocol.smoke and not ground.simulated else []
    if ground.settings.aa:
        return smoke
    screened = others if protocol.screen else debug if ground.simulated or not protocol.prime else []
    screens: list[tuple[str, Purpose]] = [(arm, "screen") for arm in screened]
    if ground.simulated:
        return screens
    primes: list[tuple[str, Purpose]] = [(arm, "prime") for arm in [plan.baseline, *others]] if protocol.prime else []
    return [*smoke, *screens, *primes]


def debug_arms(settings: Settings, plan: Plan, version: str) -> list[str]:
    """Arms with a factor whose effect this engine version proves in debug lines alone."""
    from packaging.specifiers import SpecifierSet

    def needs(factor: str, level: str) -> bool:
        spec = settings.factors.get(factor)
        if spec is None or level == spec.reference_level:
            return False
        for rule in spec.evidence:
            markers = rule.observed if isinstance(rule.observed, tuple) else (rule.observed,)
            named = rule.levels is None or level in rule.levels
            if named and SpecifierSet(rule.engine).contains(version, prereleases=True) and any(marker.debug_log for marker in markers):
                return True
        return False

    return [arm.name for arm in plan.arms if any(needs(factor, level) for factor, level in arm.levels.items())]


def write_truth(ground: Ground, study: OpenStudy) -> None:
    """Simulated engine: the true effects, beside the study, for whoever checks the verdicts. Nothing that judges reads them."""
    if not ground.simulated:
        return
    from runner.engines.simulated.truth import true_effects

    settings, plan = ground.settings, study.plan
    phases = {name: settings.workload.phases[name] for name in plan.phases}
    write_json(
        study.paths.truth,
        {"SIMULATED": True, "effects": true_effects(plan.arms, phases, settings.node, settings.model, engine_spec(ground), plan.baseline)},
    )


class Shown:
    """Tells the terminal what the loop reports."""

    def __init__(self, quiet: bool, scheduler: Scheduler, plan: Plan) -> None:
        estimate = plan.estimate
        guess = 60 * estimate.wall_minutes / estimate.launches if estimate.launches else None
        self.progress = Progress(quiet=quiet, seconds_per_launch=guess)
        self._scheduler = scheduler

    def begin(self, study: OpenStudy, ground: Ground) -> None:
        plan, estimate = study.plan, study.plan.estimate
        count = {status: sum(cell.status == status for cell in plan.cells) for status in ("ARM", "REJECTED", "DUPLICATE")}
        cost = f"about {estimate.wall_minutes:.0f} min, {estimate.estimate:.0f} GPU minutes" if estimate.launches else ""
        text = (
            f"{len(plan.cells)} cells: {len(plan.arms)} arms, {count['REJECTED']} rejected, {count['DUPLICATE']} duplicate; "
            f"engine {ground.kind} {ground.version}; {cost}"
        )
        self.progress.study(
            study.paths.name, self._scheduler.expected_launches, simulated=plan.simulated, done=len(self._scheduler.launches), text=text
        )
        if ground.simulated and ground.settings.engine.python:
            self.note(
                f"engine.python={ground.settings.engine.python} is not used: this engine is simulated; engine=sglang starts the real one"
            )
        if study.replaced:
            self.note(study.replaced)
        if study.torn is not None:
            self.note(f"the journal's last line was torn by a crash and is cut off ({len(study.torn)} characters)")
        for text in plan.notes:
            self.note(text)

    def launch_started(self, slot: Slot, number: int, total: int, node: str) -> None:
        self.progress.total(total)
        self.progress.launch(slot.launch, slot.arm, slot.purpose, "" if node in ("local",) else node)

    def stage(self, launch: str, stage: str) -> None:
        self.progress.stage(launch, stage)

    def phase_done(self, launch: str, record: PhaseRecord) -> None:
        self.progress.phase(launch, record.phase, phase_text(record))

    def launch_done(self, record: LaunchRecord) -> None:
        text = "" if record.failure is None else f"{record.failure.kind}: {record.failure.line}"
        self.progress.finished(record.launch, record.outcome, text)

    def note(self, text: str) -> None:
        self.progress.note(text)


def phase_text(record: PhaseRecord) -> str:
    if not record.valid:
        return "INVALID: " + "; ".join(record.invalid_reasons)
    shown: Mapping[str, tuple[str, str]] = {"tpot_p50_ms": ("TPOT", "ms"), "ttft_p50_ms": ("TTFT", "ms"), "output_tok_s": ("", "tok/s")}
    return ", ".join(f"{word} {record.metrics[name]:.4g} {unit}".strip() for name, (word, unit) in shown.items() if name in record.metrics)
