"""The study's loop: takes events from all nodes, writes the journal, hands out launches. One writer, one thread.

Each node has a pump thread that only moves events into one queue. Nothing is shown before it is in the journal."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.engines.base import LaunchOrder
from runner.errors import NotFinished, UserError
from runner.execution.executor import Executor, NodeHandle, NodeLost
from runner.execution.job import Event, LaunchJob, NodeOrder
from runner.execution.scheduler import Scheduler, Slot
from runner.execution.study import OpenStudy
from runner.loadgen.base import ClientBroken
from runner.records.files import read_json
from runner.records.schema import LaunchRecord, PhaseRecord
from runner.spec.engine import EngineSpec
from runner.spec.factor import FactorSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from runner.spec.protocol import Protocol as MeasuringProtocol
from runner.spec.workload import WorkloadSpec

SCREEN_LAYERS = 4
"""A screened arm is started with this many layers and random weights: refusals and most evidence without the long load."""
SHORTEST_PRIME = 0.2
"""Least `phase_scale` of an unmeasured launch, unless the study's own is less."""

END_S = 45.0
"""Longest wait for nodes to end a launch in work; a service manager's SIGKILL comes after 60 s."""


class Listener(Protocol):
    """Who is told. Every method is called after the fact is in the journal."""

    def launch_started(self, slot: Slot, number: int, total: int, node: str) -> None: ...

    def stage(self, launch: str, stage: str) -> None: ...

    def phase_done(self, launch: str, record: PhaseRecord) -> None: ...

    def launch_done(self, record: LaunchRecord) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Recipe:
    """What every launch of the study has in common."""

    engine: EngineSpec
    model: ModelSpec
    node: NodeSpec
    workload: WorkloadSpec
    protocol: MeasuringProtocol
    factors: Mapping[str, FactorSpec]
    debug_arms: frozenset[str] = frozenset()
    profile: bool = False


@dataclass
class _Node:
    handle: NodeHandle
    slot: Slot | None = None
    previous_arm: str | None = None
    previous_end: float | None = None
    client_failures: int = 0


@dataclass(frozen=True)
class _Message:
    node: str
    event: Event | None = None
    error: BaseException | None = None
    ended: bool = False


@dataclass
class StudyLoop:
    """Runs launches until the scheduler has none left. `should_stop` is asked between events (signals set it)."""

    study: OpenStudy
    recipe: Recipe
    scheduler: Scheduler
    executor: Executor
    node_order: NodeOrder
    listener: Listener
    should_stop: Callable[[], bool] = lambda: False
    _queue: "queue.Queue[_Message]" = field(default_factory=queue.Queue)
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _baseline_resolved: dict[str, Any] | None = None
    _profiled: set[str] = field(default_factory=set)

    def run(self, handles: list[NodeHandle]) -> None:
        """Raises KeyboardInterrupt when asked to stop, UserError when the baseline cannot serve, NotFinished when no node is left."""
        self.scheduler.opened = lambda block: self.study.journal.append(
            "block_opened", block=block.index, arms=block.arms, purpose=block.purpose, repairs=block.repairs
        )
        self._baseline_resolved = self._baseline_resolved or self._known_baseline()
        for handle in handles:
            self._nodes[self._unique(handle.name)] = _Node(handle)
        self.scheduler.boots.update({name: node.handle.describe().boot_id for name, node in self._nodes.items()})
        for block in self.scheduler.abandon_foreign(set(self.scheduler.boots.values())):
            self._note(f"block {block} was begun on another machine or before a reboot; its open arms go into a new block")
        try:
            while True:
                for name in list(self._nodes):
                    self._feed(name)
                if not any(node.slot for node in self._nodes.values()):
                    break
                self._take()
        except BaseException:
            self._end_busy_nodes()
            raise
        if not self._nodes:
            raise NotFinished("no node is left; start the same command again when one is back")

    def _end_busy_nodes(self) -> None:
        """Ends what runs and waits for it: who is told that the study was interrupted must find the GPUs free."""
        busy = [node.handle for node in self._nodes.values() if node.slot is not None]
        enders = [threading.Thread(target=handle.close, name=f"end-{handle.name}", daemon=True) for handle in busy]
        for ender in enders:
            ender.start()
        deadline = time.monotonic() + END_S
        for ender in enders:
            ender.join(max(0.0, deadline - time.monotonic()))

    def _known_baseline(self) -> dict[str, Any] | None:
        """The baseline's resolved configuration as an earlier driver's launch recorded it: arms are compared with it for fairness."""
        for launch in reversed(self.scheduler.launches):
            path = self.study.paths.launch(launch.launch).record
            if launch.arm == self.study.plan.baseline and launch.outcome == "ok" and path.is_file():
                return dict(read_json(path).get("resolved") or {}) or None
        return None

    def _unique(self, name: str) -> str:
        number, unique = 2, name
        while unique in self._nodes:
            unique, number = f"{name}#{number}", number + 1
        return unique

    def _feed(self, name: str) -> None:
        node = self._nodes[name]
        if node.slot is not None:
            return
        slot = self.scheduler.take(name)
        if slot is None:
            return
        job = self._job(slot, node)
        self.study.journal.append(
            "launch_started", launch=slot.launch, arm=slot.arm, block=slot.block, attempt=slot.attempt, purpose=slot.purpose, node=name
        )
        node.slot = slot
        self.listener.launch_started(slot, len(self.scheduler.launches) + 1, self.scheduler.expected_launches, name)
        threading.Thread(target=self._pump, args=(name, node.handle, job), name=f"pump-{name}", daemon=True).start()

    def _pump(self, name: str, handle: NodeHandle, job: LaunchJob) -> None:
        try:
            for event in handle.launch(job):
                self._queue.put(_Message(name, event))
            self._queue.put(_Message(name, ended=True))
        except BaseException as error:  # noqa: BLE001  told to the loop, which decides
            self._queue.put(_Message(name, error=error))

    def _take(self) -> None:
        """Handles one message; wakes a few times a second to see whether the study was asked to stop."""
        while True:
            if self.should_stop():
                raise KeyboardInterrupt
            try:
                message = self._queue.get(timeout=0.1)
            except queue.Empty:
                continue
            break
        node = self._nodes[message.node]
        assert node.slot is not None or message.ended
        if message.error is not None:
            self._lost(message.node, node, message.error)
        elif message.event is not None and node.slot is not None:
            self._event(node, node.slot, message.event)

    def _event(self, node: _Node, slot: Slot, event: Event) -> None:
        if event.kind == "stage":
            self.listener.stage(event.launch, event.stage)
        elif event.kind == "phase" and event.phase is not None:
            self.study.journal.append("phase_finished", launch=event.launch, phase=event.phase.model_dump(mode="json", by_alias=True))
            self.listener.phase_done(event.launch, event.phase)
        elif event.kind == "note":
            self._note(event.text)
        elif event.kind == "launch" and event.record is not None:
            self._launch_done(node, slot, event.record)

    def _launch_done(self, node: _Node, slot: Slot, record: LaunchRecord) -> None:
        self.study.journal.append("launch_finished", launch_id=record.launch, launch=record.model_dump(mode="json", by_alias=True))
        closed = self.scheduler.finish(slot, record)
        node.slot, node.previous_arm, node.previous_end = None, record.arm, record.ended_at
        if record.arm == self.study.plan.baseline and record.resolved:
            self._baseline_resolved = self._baseline_resolved or record.resolved
        if "profile" in record.artifacts:
            self._profiled.add(record.arm)
        self.listener.launch_done(record)
        if closed is not None:
            self.study.journal.append("arm_closed", arm=slot.arm, reason=closed)
        self._check_baseline(record)
        if record.failure is not None and record.failure.retry == "end_node":
            raise NotFinished(f"node {record.host} is not fit: {record.failure.kind}: {record.failure.line}; {record.failure.remedy}")

    def _check_baseline(self, record: LaunchRecord) -> None:
        """A baseline that has never served stops the study with its reason."""
        if record.arm != self.study.plan.baseline or record.outcome not in ("failed", "rejected"):
            return
        if any(launch.arm == record.arm and launch.outcome in ("ok", "invalid") for launch in self.scheduler.launches):
            return
        if record.attempt <= self.recipe.protocol.retries and record.failure is not None and record.failure.retry not in ("no",):
            return
        failure = record.failure
        why = f"{failure.kind}: {failure.line}\n{failure.remedy}" if failure is not None else "unknown"
        raise UserError(
            f"the baseline cannot serve, so nothing can be compared.\n{why}\nServer log: {record.artifacts.get('server_log', '-')}"
        )

    def _lost(self, name: str, node: _Node, error: BaseException) -> None:
        slot, node.slot = node.slot, None
        assert slot is not None
        if isinstance(error, ClientBroken):
            node.client_failures += 1
            self.scheduler.give_back(slot)
            self._note(f"the load client broke in {slot.launch} ({error}); the launch is repeated")
            if node.client_failures >= 3:
                raise NotFinished(f"the load client broke three times on {name}: {error}") from error
        elif isinstance(error, NodeLost):
            self.scheduler.give_back(slot, lost_node=True)
            self._note(f"node {name} was lost in {slot.launch}: {error}")
            del self._nodes[name]
            replacement = self.executor.replace(self.node_order)
            if replacement is not None:
                unique = self._unique(replacement.name)
                self._nodes[unique] = _Node(replacement)
                self.scheduler.boots[unique] = replacement.describe().boot_id
                self._note(f"node {replacement.name} takes its place")
            if not self._nodes:
                raise NotFinished(f"node {name} was lost and none is left: {error}; start the same command again") from error
        else:
            raise error

    def _note(self, text: str) -> None:
        self.study.journal.append("event", text=text)
        self.listener.note(text)

    def _phases(self, purpose: str) -> tuple[str, ...]:
        """What a launch drives. On a GPU the smoke launch stands in for priming where there is none: else the first measured launch compiles."""
        if purpose == "screen" or (purpose == "smoke" and (self.recipe.protocol.prime or not self.recipe.node.capability)):
            return ()
        return self.study.plan.phases

    def _job(self, slot: Slot, node: _Node) -> LaunchJob:
        plan, recipe = self.study.plan, self.recipe
        arm = plan.arm(slot.arm)
        options = dict(arm.options)
        if slot.purpose in ("prime", "screen") and slot.arm in recipe.debug_arms:
            options["log-level"] = "debug"
        if slot.purpose == "screen" and recipe.protocol.screen and recipe.engine.kind != "simulated":
            options |= {"load-format": "dummy", "json-model-override-args": {"num_hidden_layers": SCREEN_LAYERS}}
        order = LaunchOrder(
            study=self.study.paths.name,
            launch=slot.launch,
            arm=slot.arm,
            levels=arm.levels,
            options=options,
            env=arm.env,
            patches=arm.patches,
            block=slot.block,
            position=slot.position,
            launch_index=len(self.scheduler.launches),
            folder=str(self.study.paths.launch(slot.launch).folder.resolve()),
            engine=recipe.engine,
            model=recipe.model,
            node=recipe.node,
            seed=plan.seed,
        )
        return LaunchJob(
            order=order,
            purpose=slot.purpose,
            attempt=slot.attempt,
            phases=self._phases(slot.purpose),
            workload=recipe.workload,
            protocol=recipe.protocol if slot.purpose not in ("prime", "smoke") else _short(recipe.protocol),
            factors=dict(recipe.factors),
            baseline_levels=plan.baseline_levels,
            baseline_resolved=None if slot.arm == plan.baseline else self._baseline_resolved,
            previous_arm=node.previous_arm,
            previous_end=node.previous_end,
            study_folder=str(self.study.paths.folder.resolve()),
            profile=recipe.profile and slot.purpose == "measure" and slot.arm not in self._profiled,
        )


def _short(protocol: MeasuringProtocol) -> MeasuringProtocol:
    """An unmeasured launch sees every shape, to fill the compile caches: a quarter of the time is enough. Where that is hardly more than a
    second a phase, prefill batches of some sizes are never met and compile while they are measured (seen on two H200s), so it has a floor."""
    return protocol.model_copy(update={"phase_scale": max(protocol.phase_scale / 4, min(protocol.phase_scale, SHORTEST_PRIME))})
