"""The study's loop on nodes without servers: order, retries, closed arms, lost nodes, resume, and what is in the journal."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.errors import NotFinished, UserError
from runner.execution.executor import NodeLost
from runner.execution.job import LaunchJob, NodeOrder
from runner.execution.loop import Recipe, StudyLoop
from runner.execution.scheduler import Scheduler
from runner.execution.study import OpenStudy, open_study
from runner.loadgen.base import ClientBroken
from runner.records.journal import launches, read_journal
from runner.records.paths import RootPaths
from runner.records.schema import Evidence
from runner.spec.engine import EngineSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from runner.spec.protocol import Protocol
from runner.spec.workload import PhaseSpec, WorkloadSpec
from tests.execution.example import small_plan
from tests.execution.fakes import FakeExecutor, FakeNode, Silent, failed

PROTOCOL = Protocol(min_blocks=3, max_blocks=4, confirm=False, prime=False)
NODE = NodeSpec(name="n", gpus=8, gpu_model="g", capability=120, memory_gb=96, link="pcie", link_gb_s=63)


def recipe(protocol: Protocol) -> Recipe:
    return Recipe(
        engine=EngineSpec(kind="simulated", version="0.5.9"),
        model=ModelSpec(name="m", hidden_size=64, num_layers=2),
        node=NODE,
        workload=WorkloadSpec(name="w", phases={"decode_c1": PhaseSpec()}),
        protocol=protocol,
        factors={},
    )


def run(
    root: Path,
    nodes: list[FakeNode],
    spare: list[FakeNode] | None = None,
    protocol: Protocol = PROTOCOL,
    unmeasured: Any = (),
    stop: Any = None,
) -> tuple[OpenStudy, Scheduler, Silent]:
    """One driver's life over the study in `root`."""
    study = open_study(RootPaths(root), small_plan(), name="mine", new=False, config={})
    scheduler, listener = Scheduler(study.plan, protocol, None, unmeasured), Silent()
    scheduler.restore(*study.history())
    made = recipe(protocol)
    order = NodeOrder(study="mine", engine=made.engine, node=NODE)
    loop = StudyLoop(study, made, scheduler, FakeExecutor(nodes, spare), order, listener, stop or (lambda: False))
    try:
        loop.run(list(nodes))
    finally:
        study.close()
    return study, scheduler, listener


def made(root: Path) -> list[str]:
    return [record.launch for record in launches(read_journal(RootPaths(root).study("mine").journal))]


def test_blocks_hold_the_baseline_and_every_open_arm_once_in_the_planned_order(tmp_path: Path) -> None:
    node = FakeNode("a")
    study, scheduler, _ = run(tmp_path, [node])
    by_block: dict[int, list[str]] = {}
    for job in node.jobs:
        by_block.setdefault(job.order.block, []).append(job.order.arm)
    for block in range(3):
        assert by_block[block] == list(study.plan.blocks[block])
    assert scheduler.finished and scheduler.reason


def test_every_launch_is_in_the_journal_before_the_next_starts(tmp_path: Path) -> None:
    seen: list[int] = []

    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        seen.append(len(made(tmp_path)))
        return {}

    run(tmp_path, [FakeNode("a", behaviour)])
    assert seen == list(range(len(seen))) and len(seen) >= 9


def test_a_rejected_argument_is_never_tried_again_and_its_arm_is_closed(tmp_path: Path) -> None:
    node = FakeNode(
        "a", lambda job, n: failed("rejected_argument_combination", "no", refused_at="start") if job.order.arm == "slow" else {}
    )
    _, scheduler, _ = run(tmp_path, [node])
    assert Counter(job.order.arm for job in node.jobs)["slow"] == 1
    assert scheduler.closed["slow"].startswith("rejected")
    assert Counter(job.order.arm for job in node.jobs)["fast"] >= 3, "one bad arm never ends a study"


def test_a_port_race_is_repeated_at_once(tmp_path: Path) -> None:
    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        return failed("port_in_use", "at_once") if job.order.arm == "fast" and job.attempt == 1 and job.order.block == 0 else {}

    node = FakeNode("a", behaviour)
    run(tmp_path, [node])
    first = [job.attempt for job in node.jobs if job.order.arm == "fast" and job.order.block == 0]
    assert first == [1, 2]


def test_an_arm_that_always_fails_is_given_up(tmp_path: Path) -> None:
    node = FakeNode("a", lambda job, n: failed("nccl_timeout", "once") if job.order.arm == "slow" else {})
    _, _, _ = run(tmp_path, [node])
    tries = Counter((job.order.arm, job.order.block) for job in node.jobs)
    assert tries["slow", 0] == 2
    assert sum(count for (arm, _), count in tries.items() if arm == "slow") <= 4


def test_a_baseline_that_cannot_serve_stops_the_study_with_its_reason(tmp_path: Path) -> None:
    node = FakeNode("a", lambda job, n: failed("cuda_oom_weight_load", "no", remedy="use fewer") if job.order.arm == "baseline" else {})
    with pytest.raises(UserError, match=r"baseline cannot serve[\s\S]*cuda_oom_weight_load[\s\S]*use fewer"):
        run(tmp_path, [node], unmeasured=[("baseline", "smoke")])
    assert len(node.jobs) == 1


def test_a_sick_gpu_ends_the_node_by_name(tmp_path: Path) -> None:
    node = FakeNode("a", lambda job, n: failed("cuda_illegal_memory_access", "end_node") if n == 2 else {})
    with pytest.raises(NotFinished, match="node a is not fit: cuda_illegal_memory_access"):
        run(tmp_path, [node])


def test_a_broken_client_repeats_the_launch_and_concludes_nothing(tmp_path: Path) -> None:
    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        if number == 1:
            raise ClientBroken("worker died")
        return {}

    node = FakeNode("a", behaviour)
    _, _scheduler, listener = run(tmp_path, [node])
    assert node.jobs[1].order.launch == node.jobs[2].order.launch
    assert all(count == 1 for count in Counter(made(tmp_path)).values())
    assert any("load client broke" in note for note in listener.notes)


def test_interrupted_and_resumed_is_the_same_as_undisturbed(tmp_path: Path) -> None:
    undisturbed = FakeNode("a")
    run(tmp_path / "one", [undisturbed])
    stopped = threading.Event()

    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        if number == 4:
            stopped.set()
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "two", [FakeNode("a", behaviour)], stop=stopped.is_set)
    kept = made(tmp_path / "two")
    assert 4 <= len(kept) <= 5
    run(tmp_path / "two", [FakeNode("a")])
    assert sorted(made(tmp_path / "two")) == sorted(made(tmp_path / "one"))
    assert all(count == 1 for count in Counter(made(tmp_path / "two")).values())


def test_two_nodes_take_whole_blocks(tmp_path: Path) -> None:
    nodes = [FakeNode("a"), FakeNode("b")]
    run(tmp_path, nodes)
    owner: dict[int, set[str]] = {}
    for node in nodes:
        for job in node.jobs:
            owner.setdefault(job.order.block, set()).add(node.name)
    assert all(len(names) == 1 for names in owner.values())
    assert {name for names in owner.values() for name in names} == {"a", "b"}


def test_a_lost_node_is_replaced_and_its_block_is_not_mixed(tmp_path: Path) -> None:
    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        if number == 1:
            raise NodeLost("raylet died")
        return {}

    first, second = FakeNode("a", behaviour), FakeNode("b")
    study, scheduler, listener = run(tmp_path, [first], spare=[second])
    hosts: dict[int, set[str]] = {}
    for record in launches(read_journal(study.paths.journal)):
        hosts.setdefault(record.block, set()).add(record.host)
    assert all(len(names) == 1 for names in hosts.values()), hosts
    assert any("was lost" in note for note in listener.notes) and any("takes its place" in note for note in listener.notes)
    assert scheduler.finished
    measured = Counter(record.arm for record in launches(read_journal(study.paths.journal)))
    assert all(measured[arm] >= 3 for arm in ("baseline", "fast", "slow")), f"the lost launch was not made up for: {measured}"


def test_the_last_node_lost_is_not_finished(tmp_path: Path) -> None:
    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        raise NodeLost("gone")

    with pytest.raises(NotFinished, match="start the same command again"):
        run(tmp_path, [FakeNode("a", behaviour)])


def test_a_block_is_not_continued_after_a_reboot(tmp_path: Path) -> None:
    stopped = threading.Event()

    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        if number == 4:
            stopped.set()
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, [FakeNode("before", behaviour)], stop=stopped.is_set)
    _, _, listener = run(tmp_path, [FakeNode("after")])
    hosts: dict[int, set[str]] = {}
    for record in launches(read_journal(RootPaths(tmp_path).study("mine").journal)):
        hosts.setdefault(record.block, set()).add(record.host)
    assert all(len(names) == 1 for names in hosts.values()), hosts
    assert any("before a reboot" in note for note in listener.notes)


def test_unmeasured_launches_come_first_and_those_that_only_start_carry_no_phase(tmp_path: Path) -> None:
    node = FakeNode("a")
    run(
        tmp_path,
        [node],
        protocol=PROTOCOL.model_copy(update={"prime": True}),
        unmeasured=[("baseline", "smoke"), ("fast", "screen"), ("slow", "prime")],
    )
    assert [(job.purpose, job.order.arm) for job in node.jobs[:3]] == [("smoke", "baseline"), ("screen", "fast"), ("prime", "slow")]
    assert node.jobs[0].phases == () and node.jobs[1].phases == () and node.jobs[2].phases == ("decode_c1",)
    assert all(job.purpose == "measure" for job in node.jobs[3:])


@pytest.mark.parametrize(("scale", "short"), [(1.0, 0.25), (0.4, 0.2), (0.2, 0.2), (0.02, 0.02)])
def test_without_priming_the_smoke_launch_sees_every_shape_for_long_enough(scale: float, short: float, tmp_path: Path) -> None:
    """On two H200s the first measured launch after a smoke launch without load was still cold."""
    node = FakeNode("a")
    run(tmp_path, [node], protocol=PROTOCOL.model_copy(update={"phase_scale": scale}), unmeasured=[("baseline", "smoke")])
    assert node.jobs[0].purpose == "smoke" and node.jobs[0].phases == ("decode_c1",)
    assert node.jobs[0].protocol.phase_scale == pytest.approx(short)
    assert node.jobs[1].protocol.phase_scale == scale


def test_an_arm_that_was_closed_before_the_driver_died_is_not_launched_again(tmp_path: Path) -> None:
    """Seen on a real node: the second driver took up a half block and launched an INERT arm again in it."""
    contradicted = (Evidence(factor="speed", level="slow", grade="contradicted", proof="no such module"),)
    stopped = threading.Event()

    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        if number == 4:
            stopped.set()
        return {"evidence": contradicted} if job.order.arm == "slow" else {}

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, [FakeNode("a", behaviour)], stop=stopped.is_set)
    second = FakeNode("a", behaviour)
    _, scheduler, _ = run(tmp_path, [second])
    assert scheduler.closed["slow"].startswith("inert")
    assert [job.order.launch for job in second.jobs if job.order.arm == "slow"] == []


def test_an_unmeasured_launch_is_repeated_as_often_as_allowed_and_no_more(tmp_path: Path) -> None:
    node = FakeNode("a", lambda job, n: failed("nccl_timeout", "once") if job.purpose == "screen" else {})
    run(tmp_path, [node], unmeasured=[("fast", "screen")])
    screens = [job for job in node.jobs if job.purpose == "screen"]
    assert [job.attempt for job in screens] == [1, 2]
    assert len({job.order.launch for job in screens}) == 2, "each try has its own record"


def test_after_a_resume_a_block_stays_with_the_machine_that_began_it(tmp_path: Path) -> None:
    stopped = threading.Event()

    def behaviour(job: LaunchJob, number: int) -> dict[str, Any]:
        if job.order.block == 0 and number == 1:
            stopped.set()
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, [FakeNode("a", behaviour), FakeNode("b")], stop=stopped.is_set)
    study, _, _ = run(tmp_path, [FakeNode("b"), FakeNode("a")])
    hosts: dict[int, set[str]] = {}
    for record in launches(read_journal(study.paths.journal)):
        hosts.setdefault(record.block, set()).add(record.host)
    assert all(len(names) == 1 for names in hosts.values()), hosts
