"""Which launch comes next. Pure bookkeeping over the plan and the launches so far; asks `analysis` after each block what is open.

A block belongs to one node from its first launch to its last. After a resume, unfinished blocks are taken up first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.analysis.inert import inert_arms
from runner.analysis.next_block import NextBlock, next_block
from runner.analysis.noise import NoiseFloor
from runner.records.lean import lean
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord, Purpose
from runner.spec.protocol import Protocol


@dataclass(frozen=True)
class Slot:
    """One launch to be made."""

    block: int
    position: int
    arm: str
    attempt: int
    purpose: Purpose

    @property
    def launch(self) -> str:
        mark = {"measure": "", "confirm": "", "prime": "prime-", "smoke": "smoke-", "screen": "screen-", "noise": ""}[self.purpose]
        return f"{mark}b{self.block:02d}-p{self.position:02d}-{self.arm}" + (f"-a{self.attempt}" if self.attempt > 1 else "")


@dataclass
class Block:
    index: int
    arms: list[str]
    node: str | None = None
    purpose: Purpose = "measure"
    asked_for: bool = False  # by somebody else than the looks: arms that are decided are launched all the same
    done: set[str] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)
    repairs: int | None = None  # the abandoned block that this one makes up for
    boot: str | None = None  # of the machine that began it, in an earlier driver's life


class Scheduler:
    """`unmeasured`: (arm, purpose) launches that come before the first block (smoke, prime, screen)."""

    def __init__(self, plan: Plan, protocol: Protocol, noise: NoiseFloor | None, unmeasured: Sequence[tuple[str, Purpose]]) -> None:
        self.plan, self.protocol, self.noise = plan, protocol, noise
        self.launches: list[LaunchRecord] = []
        self.closed: dict[str, str] = {}
        self.blocks: dict[int, Block] = {}
        self.finished = False
        self.reason = ""
        self._unmeasured = list(unmeasured)
        self._running: dict[str, Slot] = {}
        self._abandoned: set[int] = set()
        self._repairs = 0
        self._repaid: set[int] = set()  # abandoned blocks whose open arms went into a new block
        self._tries: dict[tuple[str, Purpose], int] = {}
        self.boots: dict[str, str] = {}  # boot id by node name, as far as the loop has said
        self.opened: Callable[[Block], object] = lambda block: None
        """Called when a block is opened, before its first launch: the journal keeps which arms it was opened with."""

    @property
    def spent_gpu_minutes(self) -> float:
        return sum(record.gpu_seconds for record in self.launches) / 60

    @property
    def expected_launches(self) -> int:
        """Launches of this study as far as can be foreseen: made, running, waiting in blocks, and min_blocks of open arms."""
        open_arms = [name for name in self.plan.blocks[0] if name not in self.closed] if self.plan.blocks else []
        live = [block for block in self.blocks.values() if block.index not in self._abandoned]
        waiting = sum(len([arm for arm in block.arms if arm not in block.done and not self._is_closed(arm, block)]) for block in live)
        coming = max(0, self.protocol.min_blocks - len([block for block in live if block.purpose != "confirm"])) * len(open_arms)
        return len(self.launches) + waiting + coming + len(self._unmeasured)

    def restore(self, records: Sequence[LaunchRecord], entries: Sequence[Mapping[str, Any]] = ()) -> None:
        """Takes over what an earlier driver finished: its launches and, from the journal's entries, the arms that each block was
        opened with. Interrupted launches are made again under the same name."""
        for entry in entries:
            if entry.get("kind") == "block_opened":
                lost = entry.get("repairs")
                self.blocks[entry["block"]] = Block(entry["block"], list(entry["arms"]), purpose=entry["purpose"], repairs=lost)
                if lost is not None:
                    self._abandoned.add(lost)
                    self._repaid.add(lost)
        for record in records:
            if record.outcome == "interrupted":
                continue
            slot = Slot(record.block, record.position, record.arm, record.attempt, record.purpose)
            if record.purpose in ("measure", "confirm", "noise"):
                block = self.blocks.setdefault(record.block, Block(record.block, self._order(record.block), purpose=record.purpose))
                block.boot = record.boot_id
                if record.arm not in block.arms:
                    block.arms.append(record.arm)
            self._account(slot, record)
        self._repairs = sum(bool(self.blocks[number].done) for number in self._repaid)

    def take(self, node: str) -> Slot | None:
        """The next launch for this node, or None when there is nothing for it now."""
        if self._unmeasured:
            if self._running and any(slot.purpose == "smoke" for slot in self._running.values()):
                return None
            arm, purpose = self._unmeasured.pop(0)
            if purpose == "prime":  # what a screen has shown to be another arm in disguise needs no caches
                for name, other in inert_arms(self.plan, self.launches).items():
                    self.closed.setdefault(name, f"inert: same as {other}")
            if arm in self.closed:
                return self.take(node)
            return self._start(Slot(0, 0, arm, self._tries.get((arm, purpose), 0) + 1, purpose), node)
        if any(slot.purpose in ("smoke", "prime", "screen") for slot in self._running.values()):
            return None
        for block in self._blocks_of(node):
            slot = self._next_in(block)
            if slot is not None:
                block.node = node
                return self._start(slot, node)
            if any(running.block == block.index for running in self._running.values()):
                return None
        return self._open_block(node)

    def _blocks_of(self, node: str) -> list[Block]:
        boot = self.boots.get(node)
        blocks = sorted(self.blocks.values(), key=lambda block: block.index)
        return [block for block in blocks if block.node in (None, node) and (boot is None or block.boot in (None, boot))]

    def _next_in(self, block: Block) -> Slot | None:
        if block.index in self._abandoned:
            return None
        running = {slot.arm for slot in self._running.values() if slot.block == block.index}
        for position, arm in enumerate(block.arms):
            if arm in block.done or arm in running or self._is_closed(arm, block):
                continue
            return Slot(block.index, position, arm, block.attempts.get(arm, 0) + 1, block.purpose)
        return None

    def _is_closed(self, arm: str, block: Block) -> bool:
        return arm in self.closed and not block.asked_for

    def add_block(self, arms: Sequence[str], index: int | None = None) -> int:
        """One more block with these arms, asked for from outside (a night's suspects), after the last or under the number that it
        had in an earlier driver. Returns its number."""
        number = max(self.blocks, default=-1) + 1 if index is None else index
        planned = [arm for arm in self._order(number) if arm in arms]
        self.blocks[number] = Block(number, [*planned, *(arm for arm in arms if arm not in planned)], asked_for=True)
        return number

    def _owed(self) -> tuple[list[str], int | None]:
        """(arms that an abandoned block still owes and that no later block was opened for, with the baseline to compare them with; that
        block). A block of which something is left and the one that makes up for it count as one."""
        for number in sorted(self._abandoned - self._repaid):
            block = self.blocks[number]
            self._repaid.add(number)
            if block.purpose == "confirm":
                continue  # a confirmation counts its own pairs and asks again
            wanted = [arm for arm in block.arms if not self._is_closed(arm, block)]
            owed = [arm for arm in wanted if arm not in block.done]
            if self.plan.baseline in owed:
                owed = wanted  # what was measured there has nothing beside it
            if owed:
                self._repairs += bool(block.done)
                return [self.plan.baseline, *(arm for arm in owed if arm != self.plan.baseline)], number
        return [], None

    def _open_block(self, node: str) -> Slot | None:
        if self.finished:
            return None
        owed, lost = self._owed()
        if owed:
            return self._open(owed, node, "noise" if self._is_noise() else "measure", lost)
        step: NextBlock = next_block(self.plan, self.launches, self.protocol, self.noise, self.spent_gpu_minutes, self._repairs)
        self.closed.update({arm: reason for arm, reason in step.closed.items() if arm not in self.closed})
        in_flight = [block for block in self.blocks.values() if self._next_in(block) is not None or self._is_running(block)]
        if step.finished or not step.arms:
            if not in_flight:
                self.finished, self.reason = True, step.reason
            return None
        index = max(self.blocks, default=-1) + 1
        if in_flight and index - len(self._abandoned) >= self.protocol.min_blocks:
            return None  # a look comes after whole blocks; beyond the minimum one block is judged before the next is opened
        return self._open(step.arms, node, "confirm" if step.confirm else "noise" if self._is_noise() else "measure")

    def _open(self, wanted: Sequence[str], node: str, purpose: Purpose, repairs: int | None = None) -> Slot | None:
        index = max(self.blocks, default=-1) + 1
        planned = self._order(index)
        arms = [arm for arm in planned if arm in wanted] or list(wanted)
        self.blocks[index] = Block(index, arms, node, purpose, repairs=repairs)
        slot = self._next_in(self.blocks[index])
        if slot is None:
            return None
        self.opened(self.blocks[index])
        return self._start(slot, node)

    def _is_noise(self) -> bool:
        return len({arm.configuration_hash for arm in self.plan.arms}) == 1 and len(self.plan.arms) > 1

    def _is_running(self, block: Block) -> bool:
        return any(slot.block == block.index for slot in self._running.values())

    def _order(self, index: int) -> list[str]:
        rows = self.plan.blocks
        return list(rows[index % len(rows)]) if rows else [self.plan.baseline]

    def _start(self, slot: Slot, node: str) -> Slot:
        self._running[slot.launch] = slot
        return slot

    def give_back(self, slot: Slot, lost_node: bool = False) -> None:
        """The launch was lost (node gone, client broken): it will be made again, and its block is free for another node."""
        self._running.pop(slot.launch, None)
        if slot.purpose in ("smoke", "prime", "screen"):
            self._unmeasured.insert(0, (slot.arm, slot.purpose))
        elif lost_node:
            self._abandoned.add(slot.block)  # a block is one node's; what is left of it is measured in a new block

    def abandon_foreign(self, boots: set[str]) -> list[int]:
        """Blocks begun on a machine (or before a reboot) that is not at hand: never one block across either."""
        foreign = []
        for block in self.blocks.values():
            seen = {record.boot_id for record in self.launches if record.block == block.index and record.purpose == block.purpose}
            if seen and not seen <= boots and self._next_in(block) is not None:
                self._abandoned.add(block.index)
                foreign.append(block.index)
        return foreign

    def finish(self, slot: Slot, record: LaunchRecord) -> str | None:
        """Accounts for a finished launch; returns why its arm was closed, if it was."""
        self._running.pop(slot.launch, None)
        return self._account(slot, record)

    def _account(self, slot: Slot, record: LaunchRecord) -> str | None:
        self.launches.append(lean(record))
        self._unmeasured = [item for item in self._unmeasured if item != (slot.arm, slot.purpose)]
        block = self.blocks.get(slot.block) if slot.purpose in ("measure", "confirm", "noise") else None
        if block is not None:
            block.attempts[slot.arm] = max(block.attempts.get(slot.arm, 0), slot.attempt)
        else:
            self._tries[slot.arm, slot.purpose] = slot.attempt
        if record.outcome == "ok" or record.outcome == "invalid":
            if block is not None:
                block.done.add(slot.arm)
            return None
        failure = record.failure
        retry = failure.retry if failure is not None else "no"
        again = retry in ("once", "at_once", "after_cleanup") and slot.attempt <= self.protocol.retries
        if record.outcome == "rejected" or not again:
            if block is not None:
                block.done.add(slot.arm)
            if slot.arm != self.plan.baseline:
                reason = f"{record.outcome}: {failure.kind if failure else 'unknown'}"
                if record.outcome == "rejected" or retry == "no":
                    self.closed.setdefault(slot.arm, reason)
                    return reason
        elif slot.purpose in ("smoke", "prime", "screen"):
            self._unmeasured.insert(0, (slot.arm, slot.purpose))
        return None
