"""The night around a study, without launches: suspects, second look, history, summary, messages, exit codes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.actions.ground import for_tonight
from runner.actions.history import History, history_path, load_history
from runner.actions.nightly import NightWatch, night_name, open_patiently
from runner.errors import NodeBusy, NotFinished, UserError
from runner.execution.job import NodeOrder
from runner.execution.scheduler import Scheduler
from runner.execution.study import OpenStudy
from runner.records.files import read_json, write_text
from runner.records.paths import RootPaths
from runner.records.schema import Failure
from runner.spec.protocol import Protocol
from tests.actions.night_example import ARMS, ground_of, launch, nights, study_of, watch_of, with_history
from tests.execution.example import small_plan

NIGHT = Protocol(min_blocks=2, max_blocks=2, confirm=False)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[OpenStudy]:
    opened = study_of(tmp_path)
    yield opened
    opened.close()


def scheduler_of(study: OpenStudy) -> Scheduler:
    return Scheduler(study.plan, NIGHT, None, [])


def measured(study: OpenStudy, scheduler: Scheduler, factor: float, arm: str = "fast", clock: float = 2300.0) -> None:
    """Two blocks through the scheduler, `arm` at `factor` times its usual TPOT."""
    while (slot := scheduler.take("n")) is not None:
        jitter = 1 + 0.001 * (slot.block % 2)
        record = launch(
            study, slot.arm, slot.block, jitter * (factor if slot.arm == arm else 1.0), clock, launch=slot.launch, position=slot.position
        )
        scheduler.finish(slot, record)


def test_the_first_night_learns_and_begins_the_history(tmp_path: Path, study: OpenStudy) -> None:
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.0)
    assert not watch.second_look(scheduler, print)
    report = watch.conclude(scheduler.launches)
    assert report.outcome == "learning" and not report.alarm and watch.tell(0) == 0
    history = load_history(RootPaths(tmp_path), "eight", simulated=True)
    assert [night.study for night in history.nights] == ["tonight"]
    assert set(history.nights[0].values) == {f"{arm}|decode_c1|tpot_p50_ms" for arm in ARMS}
    assert not history_path(RootPaths(tmp_path), "eight", simulated=False).exists(), "a simulated night reached the real history"


def test_a_quiet_night_is_quiet(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8))
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.0)
    assert not watch.second_look(scheduler, print)
    assert watch.conclude(scheduler.launches).outcome == "quiet" and watch.tell(0) == 0
    assert watch.tell(3) == 3, "a required arm that failed keeps its exit code"


def test_a_suspect_is_launched_again_with_the_baseline_and_then_told(
    tmp_path: Path, study: OpenStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    with_history(tmp_path, nights(8))
    watch, scheduler, said = watch_of(tmp_path, study), scheduler_of(study), []
    measured(study, scheduler, 1.05)
    assert watch.second_look(scheduler, said.append)
    assert "launched again before anyone is told" in said[0]
    before = len(scheduler.launches)
    measured(study, scheduler, 1.05)
    extra = scheduler.launches[before:]
    assert sorted(record.arm for record in extra) == ["baseline", "fast"] and {record.block for record in extra} == {2}
    assert not watch.second_look(scheduler, said.append), "suspects are launched again once a night"
    report = watch.conclude(scheduler.launches)
    assert report.outcome == "regression" and report.suspects == ("fast",) and report.relaunched == ("baseline", "fast")
    shift = next(shift for shift in report.shifts if shift.quantity.arm == "fast")
    assert shift.launches == 3 and shift.change_pct == pytest.approx(-4.8, abs=0.5)
    assert watch.tell(0) == 3
    assert "fast, c1, TPOT p50: -4." in capsys.readouterr().out
    written = read_json(study.paths.folder / "nightly.json")
    assert written["outcome"] == "regression" and written["history"][-1]["study"] == "tonight" and len(written["history"]) == 9


def test_a_suspect_that_recovers_is_not_an_alarm(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8, sd=0.01))
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.042)
    assert watch.second_look(scheduler, lambda text: None)
    measured(study, scheduler, 0.98)
    report = watch.conclude(scheduler.launches)
    assert (report.first_look, report.outcome) == ("regression", "quiet") and watch.tell(0) == 0


def test_what_changed_is_named_first(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8))
    study.journal.append("nodes", nodes=[{"host": "h", "driver": "590", "gpus": ["GPU-1"]}])
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.05, clock=1900.0)
    report = watch.conclude(scheduler.launches)
    assert report.changed["driver"] == ("580", "590")
    assert report.changed["SM clock under load"] == ("2300 MHz", "1900 MHz")
    text = (study.paths.folder / "nightly.md").read_text()
    assert text.index("driver: 580 -> 590") < text.index("| fast |") and text.startswith("# SIMULATED Nightly sweep: regression")
    assert f"action=accept study.name={study.paths.name}" in text


def test_an_arm_that_no_longer_serves_is_launched_again_and_then_an_alarm(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8))
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    failure = Failure(kind="nccl_error", confidence=0.9, line="NCCL WARN", retry="no")

    def block() -> None:
        while (slot := scheduler.take("n")) is not None:
            bad = {"outcome": "failed", "failure": failure, "phases": ()} if slot.arm == "slow" else {}
            scheduler.finish(slot, launch(study, slot.arm, slot.block, launch=slot.launch, **bad))

    block()
    assert watch.second_look(scheduler, lambda text: None)
    block()
    assert [record.arm for record in scheduler.launches].count("slow") == 2, "a closed arm is launched again when asked for"
    report = watch.conclude(scheduler.launches)
    assert report.outcome == "failed" and report.missing == ("slow",) and watch.tell(0) == 3


def test_a_resumed_night_takes_up_its_extra_block(tmp_path: Path) -> None:
    with_history(tmp_path, nights(8))
    study = study_of(tmp_path)
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.05)
    assert watch.second_look(scheduler, lambda text: None)
    slot = scheduler.take("n")
    assert slot is not None
    scheduler.finish(slot, launch(study, slot.arm, slot.block, launch=slot.launch))
    study.close()  # the driver dies here

    again = study_of(tmp_path)
    try:
        watch, scheduler = watch_of(tmp_path, again), scheduler_of(again)
        watch.restore(scheduler)
        scheduler.restore(again.records)
        left = []
        while (slot := scheduler.take("n")) is not None:
            left.append(slot.arm)
            scheduler.finish(slot, launch(again, slot.arm, slot.block, 1.05, launch=slot.launch))
        assert left == [arm for arm in ("fast", "baseline") if arm in left] and len(left) == 1
        assert not watch.second_look(scheduler, lambda text: None)
    finally:
        again.close()


def test_a_baseline_that_cannot_serve_ends_the_night_with_three(
    tmp_path: Path, study: OpenStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    with_history(tmp_path, nights(8))
    failure = Failure(kind="cuda_oom_weight_load", confidence=0.9, line="CUDA out of memory", retry="no")
    launch(study, "baseline", 0, outcome="failed", failure=failure, phases=())
    watch = watch_of(tmp_path, study)
    assert watch.broke(UserError("the baseline cannot serve, so nothing can be compared.\ndetails")) == 3
    assert "CUDA out of memory" in capsys.readouterr().out
    assert load_history(RootPaths(tmp_path), "eight", True).nights[-1].outcome == "failed"


def test_other_errors_go_their_own_way_and_are_told(tmp_path: Path, study: OpenStudy) -> None:
    told = tmp_path / "told"
    watch = watch_of(tmp_path, study, schedule={"mail_command": f"cp /dev/stdin {told}"})
    assert watch.broke(UserError("the node lock cannot be opened")) is None
    assert not told.exists(), "a mistake of the user is no night"
    assert watch.broke(NotFinished("no node is left")) is None
    assert "unfinished: no node is left" in told.read_text()
    assert watch.broke(NodeBusy("study x runs on it")) is None
    assert "busy: study x runs on it" in told.read_text()
    assert load_history(RootPaths(tmp_path), "eight", True) == History(node="eight", simulated=True)


def test_a_night_judged_again_counts_once(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8))
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.0)
    watch.conclude(scheduler.launches)
    NightWatch(ground_of(tmp_path), study).conclude(scheduler.launches)
    assert [night.study for night in load_history(RootPaths(tmp_path), "eight", True).nights].count("tonight") == 1


def test_nights_of_another_experiment_are_not_compared(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8, identity={"experiment": "another"}))
    watch, scheduler = watch_of(tmp_path, study), scheduler_of(study)
    measured(study, scheduler, 1.5)
    assert watch.conclude(scheduler.launches).outcome == "learning"


def test_a_damaged_history_is_named(tmp_path: Path, study: OpenStudy) -> None:
    write_text(history_path(RootPaths(tmp_path), "eight", True), '{"nights": 3}')
    with pytest.raises(UserError, match=r"nightly\.json"):
        watch_of(tmp_path, study)


def test_real_nights_in_the_simulated_folder_are_refused(tmp_path: Path) -> None:
    with_history(tmp_path, nights(2), simulated=False)
    real, pretended = (history_path(RootPaths(tmp_path), "eight", simulated) for simulated in (False, True))
    pretended.parent.mkdir(parents=True)
    real.rename(pretended)
    with pytest.raises(UserError, match="wrong folder"):
        load_history(RootPaths(tmp_path), "eight", True)


def test_names_of_nights(tmp_path: Path) -> None:
    root, plan = RootPaths(tmp_path), small_plan(experiment="nightly")
    assert night_name(root, plan, new=False, today="20261129") == "nightly-20261129"
    study = study_of(tmp_path, "nightly-20261129", experiment="nightly")
    assert night_name(root, plan, new=False, today="20261129") == "nightly-20261129", "an unfinished night is continued"
    assert night_name(root, plan, new=True, today="20261129") == "nightly-20261129-2"
    other = small_plan(experiment="nightly", identity={"engine": "0.5.10", "grid": "abc"})
    assert night_name(root, other, new=False, today="20261129") == "nightly-20261129-2"
    study.journal.append("study_finished", reason="done")
    study.close()
    assert night_name(root, plan, new=False, today="20261129") == "nightly-20261129-2"


def test_a_night_has_a_fixed_number_of_blocks(tmp_path: Path) -> None:
    settings = ground_of(tmp_path, schedule={"blocks_per_night": 3}).settings
    protocol = for_tonight(settings).protocol
    assert (protocol.min_blocks, protocol.max_blocks, protocol.confirm) == (3, 3, False)
    day = settings.model_copy(update={"nightly": False})
    assert for_tonight(day) is day


class Busy:
    """An executor whose node is free after some tries."""

    kind = "inline"

    def __init__(self, tries: int) -> None:
        self.tries = tries

    def open(self, order: NodeOrder, nodes: int | None) -> list[object]:
        self.tries -= 1
        if self.tries >= 0:
            raise NodeBusy("study x runs on it")
        return ["node"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)


def patiently(executor: Busy, wait_s: float, clock: Clock, said: list[str], stop: float = 1e9) -> list[object]:
    order: NodeOrder = None  # type: ignore[assignment]
    ask = lambda: clock.now >= stop  # noqa: E731
    return open_patiently(executor, order, None, wait_s, ask, said.append, clock.sleep, lambda: clock.now)  # type: ignore[arg-type,return-value]


def test_a_busy_node_is_waited_for_up_to_the_limit() -> None:
    said: list[str] = []
    clock = Clock()
    assert patiently(Busy(3), 3600, clock, said) == ["node"] and 40 < clock.now < 50
    assert said == ["study x runs on it; waiting up to 60 min"]
    with pytest.raises(NodeBusy, match=r"study x runs on it \(waited 10 min\)"):
        patiently(Busy(10**6), 600, Clock(), said)
    with pytest.raises(NodeBusy, match=r"study x runs on it$"):
        patiently(Busy(10**6), 0, Clock(), said)


def test_a_foreign_process_on_the_gpus_is_waited_for() -> None:
    clock, order = Clock(), NodeOrder.model_construct()

    def foreign() -> list[str]:
        return ["pid 4711 (train.py) on GPU 3"] if clock.now < 100 else []

    said: list[str] = []
    got = open_patiently(Busy(0), order, None, 600, lambda: False, said.append, clock.sleep, lambda: clock.now, foreign)  # type: ignore[arg-type]
    assert got == ["node"] and 100 <= clock.now < 120 and "pid 4711 (train.py)" in said[0]


def test_ctrl_c_ends_the_wait() -> None:
    clock = Clock()
    with pytest.raises(KeyboardInterrupt):
        patiently(Busy(10**6), 3600, clock, [], stop=20.0)
    assert clock.now < 21


def test_mail_gets_subject_and_summary_without_a_shell(tmp_path: Path, study: OpenStudy) -> None:
    with_history(tmp_path, nights(8))
    script = tmp_path / "mail.py"
    script.write_text("import json, sys\njson.dump([sys.argv[2:], sys.stdin.read()], open(sys.argv[1], 'w'))\n")
    command = f"{sys.executable} {script} {tmp_path}/sent '{{subject}}' '$(touch {tmp_path}/shell)' {{nothing}}"
    watch, scheduler = watch_of(tmp_path, study, schedule={"mail_command": command}), scheduler_of(study)
    measured(study, scheduler, 1.05)
    watch.conclude(scheduler.launches)
    assert watch.tell(0) == 3
    words, body = json.loads((tmp_path / "sent").read_text())
    assert words == ["SIMULATED REGRESSION: tonight on eight", f"$(touch {tmp_path}/shell)", "{nothing}"]
    assert body.startswith("# SIMULATED Nightly sweep: regression") and not (tmp_path / "shell").exists()
