"""What the next block holds, for every way an arm can end."""

import numpy as np
import pytest

from runner.analysis.next_block import next_block
from runner.analysis.noise import noise_floor
from runner.records.plan import Plan
from runner.records.schema import Evidence, Failure, LaunchRecord
from runner.spec.protocol import Protocol
from tests.analysis.example import launch, measured, plan

LEVELS = {"baseline": {"m": "off", "s": "off"}, "a": {"m": "on", "s": "off"}, "b": {"m": "off", "s": "on"}, "ab": {"m": "on", "s": "on"}}
NAMES = tuple(LEVELS)
CRASH = Failure(kind="crash", confidence=1, retry="once")
PROTOCOL = Protocol()


def run(effects: dict[str, float], noise: float, seed: int = 1, protocol: Protocol = PROTOCOL) -> tuple[list[LaunchRecord], str, Plan]:
    """Plays a whole study; returns its launches and why it ended."""
    made, rng, launches = plan(LEVELS), np.random.default_rng(seed), []
    for block in range(40):
        step = next_block(made, launches, protocol, None, len(launches))
        if step.finished:
            assert step.arms == ()
            return launches, step.reason, made
        assert "baseline" in step.arms
        launches += measured(
            rng, step.arms, 1, effects=effects, noise=noise, levels=LEVELS, start=block, purpose="confirm" if step.confirm else "measure"
        )
    raise AssertionError("the study never ends")


def test_first_blocks_keep_the_planned_order() -> None:
    made, launches = plan(LEVELS), []
    for block in range(3):
        step = next_block(made, launches, PROTOCOL, None, 0.0)
        assert step.arms == made.blocks[block]
        launches += measured(np.random.default_rng(block), NAMES, 1, start=block)


def test_clear_effects_end_after_three_blocks_and_the_best_is_confirmed() -> None:
    launches, reason, _ = run({"a": -0.05, "ab": -0.03}, 0.002)
    assert len([record for record in launches if record.purpose == "measure"]) == 12
    confirm = [record for record in launches if record.purpose == "confirm"]
    assert [record.arm for record in confirm] == ["a", "baseline", "baseline", "a"] or {record.arm for record in confirm} == {
        "a",
        "baseline",
    }
    assert len(confirm) == 4
    assert "decided" in reason


def test_the_arm_to_be_confirmed_is_not_closed() -> None:
    launches = measured(np.random.default_rng(1), NAMES, 3, effects={"a": -0.05, "b": 0.05}, noise=0.002)
    step = next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0)
    assert step.confirm
    assert "a" in step.arms
    assert "a" not in step.closed
    assert "WORSE" in step.closed["b"]


def test_no_better_arm_no_confirmation() -> None:
    launches, _, _ = run({"a": 0.05}, 0.002)
    assert all(record.purpose == "measure" for record in launches)


def test_hopeless_arms_stop_before_the_last_block() -> None:
    launches, reason, _ = run({}, 0.03)
    assert max(record.block for record in launches) + 1 < PROTOCOL.max_blocks
    assert "hopeless" in reason


def test_never_more_than_max_blocks() -> None:
    protocol = Protocol(max_blocks=4, confirm=False)
    launches, _, _ = run({"a": -0.009, "b": 0.008, "ab": 0.01}, 0.004, protocol=protocol)
    assert max(record.block for record in launches) <= 3


def test_baseline_goes_on_with_the_open_arms_alone() -> None:
    rng = np.random.default_rng(3)
    launches = measured(rng, NAMES, 3, effects={"a": 0.2, "b": 0.2, "ab": -0.011}, noise=0.004)
    step = next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0)
    assert set(step.arms) == {"baseline", "ab"}
    assert {"a", "b"} <= set(step.closed)


def test_inert_is_closed_after_one_launch() -> None:
    launches = measured(np.random.default_rng(1), NAMES, 1)
    contradicted = Evidence(factor="s", level="on", grade="contradicted", proof="not importable")
    launches = [record.model_copy(update={"evidence": (contradicted,)}) if record.arm in ("b", "ab") else record for record in launches]
    step = next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0)
    assert step.closed == {"b": "inert: same as baseline", "ab": "inert: same as a"}
    assert set(step.arms) == {"baseline", "a"}


@pytest.mark.parametrize(
    ("failures", "served", "closed"),
    [
        ([CRASH], 0, False),
        ([CRASH, CRASH], 0, True),
        ([CRASH], 2, False),
        ([CRASH, CRASH, CRASH, CRASH], 2, True),
        ([Failure(kind="oom", confidence=1, retry="no")], 0, True),
    ],
)
def test_failed_arms_follow_the_retry_rules(failures: list[Failure], served: int, closed: bool) -> None:
    launches = measured(np.random.default_rng(1), ["baseline", "a"], max(served, 1))
    launches = [record for record in launches if record.arm != "a" or record.block < served]
    for attempt, failure in enumerate(failures, 1):
        launches.append(launch("a", served, 3, outcome="failed", failure=failure, attempt=attempt))
    step = next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0)
    assert ("a" in step.closed) is closed
    assert ("a" in step.arms) is not closed


def test_refused_at_start_is_closed_at_once() -> None:
    refused = Failure(kind="arguments", confidence=1, refused_at="start")
    launches = [*measured(np.random.default_rng(1), ["baseline"], 1), launch("a", 0, 1, outcome="rejected", failure=refused)]
    assert "a" in next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0).closed


def test_a_baseline_that_cannot_serve_ends_the_study() -> None:
    launches = [launch("baseline", 0, 0, outcome="failed", failure=CRASH, attempt=attempt) for attempt in (1, 2)]
    step = next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0)
    assert step.finished
    assert "baseline" in step.reason


def test_budget_truncates_to_what_it_pays_for() -> None:
    launches = measured(np.random.default_rng(1), NAMES, 1)
    protocol = Protocol(gpu_minutes=7)
    two_arms = next_block(plan(LEVELS), launches, protocol, None, 4.0)
    assert len(two_arms.arms) == 3
    assert "baseline" in two_arms.arms
    none = next_block(plan(LEVELS), launches, protocol, None, 5.5)
    assert none.finished
    assert "budget" in none.reason


def test_interrupted_launches_do_not_count() -> None:
    launches = [*measured(np.random.default_rng(1), NAMES, 2), launch("a", 2, 0, outcome="interrupted")]
    step = next_block(plan(LEVELS), launches, PROTOCOL, None, 0.0)
    assert not step.finished
    assert set(step.arms) == set(NAMES)


def test_aa_study_runs_its_minimum_and_ends() -> None:
    made = plan({"baseline": {}, "baseline-2": {}}, hypotheses=())
    launches = measured(np.random.default_rng(1), ["baseline", "baseline-2"], 2, purpose="noise")
    assert set(next_block(made, launches, PROTOCOL, None, 0.0).arms) == {"baseline", "baseline-2"}
    launches = measured(np.random.default_rng(1), ["baseline", "baseline-2"], 3, purpose="noise")
    assert next_block(made, launches, PROTOCOL, None, 0.0).finished


def test_a_baseline_alone_is_measured_its_minimum() -> None:
    made = plan({"baseline": {}})
    assert next_block(made, [], PROTOCOL, None, 0.0).arms == ("baseline",)
    assert next_block(made, measured(np.random.default_rng(1), ["baseline"], 3), PROTOCOL, None, 0.0).finished


def test_noise_floor_lets_a_single_arm_end_after_three_blocks() -> None:
    made = plan({"baseline": {}, "a": {"m": "on"}})
    launches = measured(np.random.default_rng(1), ["baseline", "a"], 3, effects={"a": -0.03}, noise=0.003)
    floor = noise_floor(measured(np.random.default_rng(2), ["baseline"], 12, noise=0.003, purpose="noise"))
    assert not next_block(made, launches, PROTOCOL, None, 0.0).confirm
    assert next_block(made, launches, PROTOCOL, floor, 0.0).confirm
