"""After the last launch (or at any later time): decision, report, tracking, table, exit code. Records in, views out."""

import sys
from typing import TYPE_CHECKING

from runner.actions.ground import Ground
from runner.errors import UserError
from runner.records.decision import Decision
from runner.records.files import read_json, write_json
from runner.records.journal import launches, read_journal
from runner.records.night import NightReport
from runner.records.paths import StudyPaths
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol

if TYPE_CHECKING:
    from runner.analysis.noise import NoiseFloor
    from runner.tracking.launcher import TrackingProcess


def decide(paths: StudyPaths, protocol: Protocol, regrade: bool = False) -> tuple[Plan, list[LaunchRecord], Decision]:
    """Judges the study's records, with the noise floor that it began with, and writes decision.json. Raises UserError when the
    records are damaged."""
    from runner.analysis.judge import judge

    plan = Plan.model_validate(read_json(paths.plan))
    entries = read_journal(paths.journal)
    records = launches(entries)
    if regrade:
        from runner.actions.regrade import regraded

        records = regraded(paths, records, entries)
    finished = any(entry["kind"] == "study_finished" for entry in entries)
    decision = judge(plan, records, protocol, noise=study_floor(paths), complete=finished)
    if (night := night_report(paths)) is not None:
        from runner.analysis.night_decision import as_night

        decision = as_night(decision, night)
    write_json(paths.decision, decision.model_dump(mode="json", by_alias=True))
    return plan, records, decision


def night_report(paths: StudyPaths) -> NightReport | None:
    """What the night's watch wrote; None for every other study. Raises UserError when the file is damaged."""
    if not paths.night.is_file():
        return None
    try:
        return NightReport.model_validate(read_json(paths.night))
    except ValueError as error:
        raise UserError(f"{paths.night} is no outcome of a night ({str(error).splitlines()[0]}); restore it, or move it away") from None


def settle(ground: Ground, paths: StudyPaths, tracking: "TrackingProcess | None") -> int:
    """Returns the exit code: 3 when the baseline or a required arm failed, else 0."""
    from runner.reporting.html import write_report
    from runner.reporting.terminal import print_decision

    plan, records, decision = decide(paths, ground.settings.protocol)
    learn(ground, records)
    write_report(paths, decision, plan, records)
    if tracking is not None and ground.settings.tracking.enabled:
        tracking.finish()
    print_decision(decision, plan, paths)
    if tracking is not None and ground.settings.tracking.enabled:
        for line in tracking.summary():
            print(line)
    return exit_code(decision, ground.settings.protocol)


def exit_code(decision: Decision, protocol: Protocol) -> int:
    required = {decision.baseline, *protocol.required}
    failed = [arm for arm in decision.arms if arm.name in required and arm.status in ("FAILED", "REJECTED", "BROKEN")]
    for arm in failed:
        print(f"required arm {arm.name}: {arm.status} {arm.failure_class or ''} {arm.reason}".rstrip(), file=sys.stderr)
    return 3 if failed else 0


def keep_floor(ground: Ground, paths: StudyPaths, begun: bool) -> "NoiseFloor | None":
    """The node's noise floor, copied beside the study when it begins: stops and verdicts use this one for good, whatever is learned
    about the node meanwhile. `begun`: launches were made already, so what is not there was not known. Raises UserError."""
    from runner.actions.ground import node_file

    if not begun and not ground.settings.aa and not paths.noise_floor.is_file():
        content = node_file(ground, "noise_floor.json")
        if content is not None:
            write_json(paths.noise_floor, content)
    return study_floor(paths)


def study_floor(paths: StudyPaths) -> "NoiseFloor | None":
    """None where the study began without one. Raises UserError for a damaged file."""
    from runner.analysis.noise import NoiseFloor

    if not paths.noise_floor.is_file():
        return None
    try:
        return NoiseFloor.model_validate(read_json(paths.noise_floor))
    except ValueError as error:
        raise UserError(f"{paths.noise_floor} is no noise floor ({str(error).splitlines()[0]}); restore it") from None


def learn(ground: Ground, records: list[LaunchRecord]) -> None:
    """What the node's next plan can use: launch costs, and the noise floor after A/A launches."""
    from runner.analysis.noise import noise_floor
    from runner.records.paths import safe_name

    folder = ground.root.nodes / safe_name(("SIMULATED-" if ground.simulated else "") + ground.settings.node.name)
    costs = [
        {
            "start_s": record.stages["start"],
            "total_s": record.ended_at - record.started_at,
            "phases_s": record.stages.get("phases", 0.0),
            "stop_s": record.stages.get("stop", 0.0),
            "cold": record.purpose in ("smoke", "prime"),
            "engine_build": record.engine.build,
            "phases": len(record.phases),
        }
        for record in records
        if record.outcome in ("ok", "invalid") and "start" in record.stages
    ]
    if costs:
        write_json(folder / "launch_costs.json", {"schema": 1, "launches": costs[-200:]})
    if ground.settings.aa:
        write_json(folder / "noise_floor.json", noise_floor(records).model_dump(mode="json", by_alias=True))
