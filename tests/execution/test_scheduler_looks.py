"""Lost blocks and the looks: what the scheduler stops for is what the decision says. No server, no clock."""

import numpy as np
import pytest

from runner.analysis.judge import judge
from runner.analysis.next_block import next_block
from runner.analysis.noise import NoiseEntry, NoiseFloor
from runner.execution.scheduler import Scheduler
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol
from tests.analysis.example import TPOT, launch, measured, plan

ARMS = {"baseline": {"m": "off"}, "a": {"m": "1"}, "b": {"m": "2"}, "c": {"m": "3"}}
PLAN = plan(ARMS)
PROTOCOL = Protocol(confirm=False)
FLOOR = NoiseFloor(entries=(NoiseEntry(phase="decode_c1", metric=TPOT, launches=12, between_pct=1.0, df=10),))


def play(seed: int, effects: dict[str, float], lose: int | None, noise: float = 0.01) -> tuple[Scheduler, list[LaunchRecord]]:
    """A whole study on one node after another: the node that makes launch number `lose` is lost in it."""
    rng, scheduler = np.random.default_rng(seed), Scheduler(PLAN, PROTOCOL, FLOOR, ())
    records: list[LaunchRecord] = []
    node = 0
    while (slot := scheduler.take(f"n{node}")) is not None:
        if len(records) == lose:
            scheduler.give_back(slot, lost_node=True)
            node, lose = node + 1, None
            continue
        value = 10 * np.exp(effects.get(slot.arm, 0.0) + noise * rng.standard_normal())
        record = launch(slot.arm, slot.block, slot.position, metrics={"decode_c1": {TPOT: float(value)}}, started_at=10.0 * len(records))
        records.append(record)
        scheduler.finish(slot, record)
        assert len(records) < 100, "the study never ends"
    assert scheduler.finished
    return scheduler, records


@pytest.mark.parametrize("lose", [None, 5, 9])
def test_what_it_stopped_for_is_what_the_decision_says(lose: int | None) -> None:
    found = 0
    for seed in range(6):
        scheduler, records = play(seed, {"a": -0.03, "b": 0.05}, lose)
        decision = judge(PLAN, records, PROTOCOL, noise=FLOOR)
        verdicts = {arm.name: arm.verdict for arm in decision.arms}
        for arm, why in scheduler.closed.items():
            if why.startswith("decided"):
                word = why.split()[-1]
                assert verdicts[arm] == word, (seed, arm, why, verdicts)
                found += 1
        used = {name: sum(record.arm == name for record in records) for name in ARMS}
        counted = {arm.name: arm.hypotheses[0].launches for arm in decision.arms if arm.hypotheses}
        assert all(counted[name] >= used[name] - 1 for name in counted), "no block is left out of the verdict"
        assert min(used.values()) >= 3
    assert found >= 6


def test_a_loss_does_not_take_a_block_away_from_what_stays_open() -> None:
    """Arm `c` was not launched in a lost block of four; the block that makes up for it is allowed beyond the largest number."""
    protocol, carried_on = Protocol(confirm=False, max_blocks=4), 0
    for seed in range(12):
        launches = measured(np.random.default_rng(seed), tuple(ARMS), 4, effects={"c": -0.02}, noise=0.01)
        launches = [record for record in launches if (record.arm, record.block) != ("c", 1)]
        assert next_block(PLAN, launches, protocol, FLOOR, 0.0).finished
        carried_on += "c" in next_block(PLAN, launches, protocol, FLOOR, 0.0, repairs=1).arms
    assert carried_on > 0


def test_a_repair_is_made_once_whatever_is_resumed() -> None:
    entries = [
        {"kind": "block_opened", "block": 0, "arms": list(ARMS), "purpose": "measure"},
        {"kind": "block_opened", "block": 1, "arms": list(ARMS), "purpose": "measure"},
        {"kind": "block_opened", "block": 2, "arms": ["baseline", "c"], "purpose": "measure", "repairs": 1},
    ]
    made = [launch(arm, 0, at, metrics={"decode_c1": {TPOT: 10.0}}, started_at=at) for at, arm in enumerate(ARMS)]
    made += [launch(arm, 1, at, metrics={"decode_c1": {TPOT: 10.0}}, started_at=10 + at) for at, arm in enumerate(("baseline", "a", "b"))]
    resumed = Scheduler(PLAN, PROTOCOL, None, ())
    resumed.restore(made, entries)
    slots: list[tuple[int, str]] = []
    while (slot := resumed.take("n")) is not None and len(slots) < 2:
        slots.append((slot.block, slot.arm))
        resumed.finish(slot, launch(slot.arm, slot.block, slot.position, metrics={"decode_c1": {TPOT: 10.0}}, started_at=99.0))
    assert slots == [(2, "baseline"), (2, "c")], "the block that makes up for block 1 is taken up, and no second one opened"
