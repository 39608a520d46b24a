"""The night around a study: a second look at suspects before anyone is told, the verdict, the history, the message, the exit code."""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runner.actions.history import History, load_history, save_history
from runner.actions.night_text import history_rows, markdown
from runner.actions.notify import notify
from runner.actions.tonight import felt_different, identity_of, limits_text, night_of, observed_of, quantities_of
from runner.analysis.nightly import NightVerdict, baseline_of, judge_night
from runner.errors import NodeBusy, RunnerError, UserError
from runner.execution.study import OpenStudy, differences, is_finished
from runner.records.files import read_json, write_json, write_text
from runner.records.journal import launches, read_journal
from runner.records.night import Night, NightReport, Observed, Quantity
from runner.records.paths import RootPaths, StudyPaths, safe_name
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord

if TYPE_CHECKING:
    from runner.actions.ground import Ground
    from runner.execution.executor import Executor, NodeHandle
    from runner.execution.job import NodeOrder
    from runner.execution.scheduler import Scheduler

EXIT_ALARM = 3
RETRY_S = 15.0


def night_name(root: RootPaths, plan: Plan, new: bool, today: str | None = None) -> str:
    """`nightly-YYYYMMDD` (the experiment's name and the day). The day's unfinished night of the same plan is continued; after a
    finished one the next gets a number."""
    base = safe_name(f"{plan.experiment or 'nightly'}-{today or time.strftime('%Y%m%d')}")
    number = 1
    while True:
        paths = root.study(base if number == 1 else f"{base}-{number}")
        if not paths.plan.exists():
            return paths.name
        same = not differences(Plan.model_validate(read_json(paths.plan)).identity, plan.identity)
        if same and not new and not is_finished(paths):
            return paths.name
        number += 1


class NightWatch:
    """One night's study, from its first launch to the message. `study` is open; its journal is ours to write."""

    def __init__(self, ground: "Ground", study: OpenStudy) -> None:
        """Raises UserError when the node's history is damaged."""
        self.settings, self.root, self.simulated = ground.settings, ground.root, ground.simulated
        self.study, self.plan = study, study.plan
        self.paths: StudyPaths = study.paths
        self.history: History = load_history(self.root, self.settings.node.name, self.simulated)
        self.quantities: list[Quantity] = quantities_of(self.plan, self.settings)
        self.report: NightReport | None = None
        self._added = next((entry for entry in reversed(study.entries) if entry.get("kind") == "block_added"), None)

    def restore(self, scheduler: "Scheduler") -> None:
        """Takes up the extra block that an earlier driver of this night asked for."""
        if self._added is not None:
            scheduler.add_block(list(self._added["arms"]), int(self._added["block"]))

    def second_look(self, scheduler: "Scheduler", say: Callable[[str], None]) -> bool:
        """True when suspects are to be launched again: one more block, with the baseline beside them, once a night."""
        if self._added is not None:
            return False
        _, verdict, _, missing = self._judge(scheduler.launches)
        arms = [arm.name for arm in self.plan.arms if arm.name in {*verdict.suspects, *missing}]
        if not arms:
            return False
        wanted = list(dict.fromkeys([self.plan.baseline, *arms]))
        block = scheduler.add_block(wanted)
        why = verdict.sentence if verdict.suspects else f"no valid launch of {', '.join(missing)}"
        self._added = self.study.journal.append("block_added", block=block, arms=wanted, first_look=verdict.outcome, reason=why)
        say(f"suspect: {why}; launched again before anyone is told")
        return True

    def conclude(self, records: Sequence[LaunchRecord]) -> NightReport:
        """Judges all launches of the night; writes the history, nightly.json and nightly.md."""
        night, verdict, observed, missing = self._judge(records)
        outcome, sentence = verdict.outcome, verdict.sentence
        if missing and outcome != "regression":
            outcome = "failed"
            sentence = f"failed: no valid launch of {', '.join(missing)}, which served on baseline nights ({verdict.sentence})"
        if not night.values:
            outcome, sentence = "failed", f"failed: no valid launch at all ({_failures(records)})"
        return self._keep(night.model_copy(update={"outcome": outcome}), observed, verdict, outcome, sentence, missing)

    def broke(self, error: RunnerError) -> int | None:
        """The study ended early: says so. Returns the exit code where the night is over (its baseline cannot serve), else None:
        the error goes its own way and the same night can be resumed."""
        first = str(error).splitlines()[0]
        if isinstance(error, UserError):
            records = launches(read_journal(self.paths.journal))
            if not any(record.outcome in ("failed", "rejected") for record in records):
                return None
            night, _, observed, _ = self._judge(records)
            night = night.model_copy(update={"outcome": "failed"})
            said = error if _failures(records) == "nothing was launched" else f"{first} {_failures(records)}"
            self._keep(night, observed, NightVerdict(outcome="failed"), "failed", f"failed: {said}", ())
            return self.tell(0)
        outcome = "busy" if isinstance(error, NodeBusy) else "unfinished"
        report = NightReport(
            study=self.paths.name,
            node=self.settings.node.name,
            simulated=self.simulated,
            at=time.time(),
            outcome=outcome,
            sentence=f"{outcome}: {first}",
            history=history_rows(self.history, self.plan.experiment or "nightly"),
        )
        self._write(report)
        self._send(report)
        return None

    def tell(self, code: int) -> int:
        """Prints the outcome and sends the messages; the exit code of the night, where `code` is that of the study."""
        assert self.report is not None
        print(f"{'SIMULATED ' if self.simulated else ''}night: {self.report.sentence}")
        for name, (old, new) in self.report.changed.items():
            print(f"  changed since the baseline: {name}: {old} -> {new}")
        print(f"  {self.paths.folder / 'nightly.md'}")
        self._send(self.report)
        return EXIT_ALARM if self.report.alarm else code

    def _send(self, report: NightReport) -> None:
        for line in notify(report, self.settings.schedule, self.root):
            print(line, file=sys.stderr)

    def _judge(self, records: Sequence[LaunchRecord]) -> tuple[Night, NightVerdict, Observed, tuple[str, ...]]:
        entries = read_journal(self.paths.journal)
        nodes: list[dict[str, object]] = next((entry["nodes"] for entry in reversed(entries) if entry["kind"] == "nodes"), [])
        started = next((entry["t"] for entry in entries if entry["kind"] == "study_started"), time.time())
        identity = identity_of(self.plan, self.settings, records, nodes, _limits(nodes, self.simulated))
        night = night_of(self.paths.name, records, self.quantities, identity, started)
        earlier = self.history.before(night)
        verdict = judge_night(night, earlier, self.quantities, self.settings.protocol.margins)
        observed = observed_of(records)
        baseline = baseline_of(earlier)
        felt = felt_different([self.history.observed[each.study] for each in baseline if each.study in self.history.observed], observed)
        return night, verdict.model_copy(update={"changed": {**verdict.changed, **felt}}), observed, self._missing(night, baseline)

    def _missing(self, night: Night, baseline: Sequence[Night]) -> tuple[str, ...]:
        """Arms of tonight's plan without a valid value that had some on a baseline night: not starting is a regression too."""
        usual = {name.split("|")[0] for each in baseline for name in each.values}
        there = {name.split("|")[0] for name in night.values}
        return tuple(arm.name for arm in self.plan.arms if arm.name in usual and arm.name not in there)

    def _keep(
        self, night: Night, observed: Observed, verdict: NightVerdict, outcome: str, sentence: str, missing: tuple[str, ...]
    ) -> NightReport:
        # The file is read again: another experiment's night may have been added while this one measured.
        self.history = load_history(self.root, self.settings.node.name, self.simulated).with_night(night, observed)
        save_history(self.root, self.history)
        added = self._added
        self.report = NightReport(
            study=self.paths.name,
            node=self.settings.node.name,
            simulated=self.simulated,
            at=night.at,
            outcome=outcome,
            sentence=sentence,
            changed=verdict.changed,
            shifts=verdict.shifts,
            suspects=verdict.suspects,
            missing=missing,
            relaunched=tuple(added["arms"]) if added is not None else (),
            first_look=str(added["first_look"]) if added is not None else "",
            baseline_nights=tuple(each.study for each in baseline_of(self.history.before(night))),
            observed=observed,
            history=history_rows(self.history, self.plan.experiment or "nightly"),
        )
        self._write(self.report)
        return self.report

    def _write(self, report: NightReport) -> None:
        write_json(self.paths.night, report.model_dump(mode="json", by_alias=True))
        write_text(self.paths.folder / "nightly.md", markdown(report))


def _failures(records: Sequence[LaunchRecord]) -> str:
    found = [record.failure for record in records if record.failure is not None]
    return f"{found[-1].kind}: {found[-1].line}" if found else "nothing was launched" if not records else "no phase was valid"


def _limits(nodes: Sequence[dict[str, object]], simulated: bool) -> str:
    """Power and clock limits, where the node is this machine."""
    if simulated or len(nodes) != 1 or nodes[0].get("host") != socket.gethostname() or not nodes[0].get("gpus"):
        return ""
    from runner.engines.gpu_limits import gpu_limits

    return limits_text(gpu_limits())


def gpus_in_use(simulated: bool, cluster: str | None) -> Sequence[str]:
    """Who computes on this machine's GPUs, where they are the ones that will be measured."""
    if simulated or cluster is not None:
        return ()
    from runner.engines.gpus import Gpus

    gpus = Gpus.visible()
    return gpus.not_free(gpus.uuids)


def open_patiently(
    executor: "Executor",
    order: "NodeOrder",
    nodes: int | None,
    wait_s: float,
    asked_to_stop: Callable[[], bool],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    occupied: Callable[[], Sequence[str]] = tuple,
) -> "list[NodeHandle]":
    """Takes the node, trying again for up to `wait_s` seconds while somebody holds it or computes on its GPUs (`occupied` says
    who). The wait is here and not in the lock, so that Ctrl-C ends it. Raises NodeBusy that names the holder and the wait,
    KeyboardInterrupt."""
    deadline = clock() + wait_s
    told = False
    while True:
        try:
            if others := occupied():
                raise NodeBusy(f"the GPUs are in use: {'; '.join(others[:8])}")
            return executor.open(order, nodes)
        except NodeBusy as busy:
            left = deadline - clock()
            if left <= 0:
                raise NodeBusy(f"{busy}" + (f" (waited {wait_s / 60:.0f} min)" if wait_s else "")) from None
            if not told:
                say(f"{busy}; waiting up to {wait_s / 60:.0f} min")
                told = True
        pause = clock() + min(RETRY_S, left)
        while clock() < pause:
            if asked_to_stop():
                raise KeyboardInterrupt
            sleep(min(0.2, max(0.0, pause - clock())))
