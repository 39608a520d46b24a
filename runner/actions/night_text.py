"""A night's outcome in words and as JSON. What changed comes first: it explains most of what moved."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

from runner.actions.history import EXPERIMENT, History
from runner.records.night import NightReport
from runner.records.words import metric_word, phase_word, signed

SHOWN_NIGHTS = 90


def history_rows(history: History, experiment: str) -> tuple[dict[str, Any], ...]:
    """What a chart needs: geometric means by quantity, night by night, of the nights that are compared with each other."""
    nights = [night for night in history.nights if night.identity.get(EXPERIMENT) == experiment]
    return tuple(
        {
            "study": night.study,
            "at": night.at,
            "outcome": night.outcome,
            "accepted": night.accepted,
            "means": {name: float(f"{statistics.geometric_mean(values):.5g}") for name, values in night.values.items()},
        }
        for night in nights[-SHOWN_NIGHTS:]
    )


def markdown(report: NightReport) -> str:
    """The short summary: outcome, what changed, what moved, what was done about it, what to do."""
    title = f"# {'SIMULATED ' if report.simulated else ''}Nightly sweep: {report.outcome}"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.at))
    lines = [title, "", f"{report.study}, node {report.node}, {when}", "", report.sentence, ""]
    if report.changed:
        lines += ["**Changed since the baseline**", "", *(f"- {name}: {old} -> {new}" for name, (old, new) in report.changed.items()), ""]
    elif report.outcome not in ("learning", "busy", "unfinished"):
        lines += ["Nothing that is recorded changed since the baseline.", ""]
    if report.missing:
        lines += [f"No valid launch tonight of: {', '.join(report.missing)}.", ""]
    if report.relaunched:
        lines += [
            f"Launched again the same night before this was said: {', '.join(report.relaunched)} (first look: {report.first_look}).",
            "",
        ]
    if report.shifts:
        lines += ["| arm | phase | metric | change % | interval | nights | launches | verdict |", "|---|---|---|---|---|---|---|---|"]
        order = {"REGRESSION": 0, "IMPROVEMENT": 1, "quiet": 2}
        for shift in sorted(report.shifts, key=lambda each: (order[each.verdict], each.change_pct)):
            what = shift.quantity
            lines.append(
                f"| {what.arm} | {phase_word(what.phase)} | {metric_word(what.metric)} | {signed(shift.change_pct)} "
                f"| [{signed(shift.low_pct)}, {signed(shift.high_pct)}] | {shift.nights} | {shift.launches} | {shift.verdict} |"
            )
        lines += ["", "A positive change is an improvement.", ""]
    if report.baseline_nights:
        lines += [f"Baseline: {len(report.baseline_nights)} nights, {report.baseline_nights[0]} to {report.baseline_nights[-1]}.", ""]
    if report.outcome in ("regression", "improvement"):
        lines += [f"If this is how the node is to be from now on: `python -m runner action=accept study.name={report.study}`", ""]
    return "\n".join(lines)


def fields_of(report: NightReport) -> Mapping[str, str]:
    """What templates may name."""
    return {
        "outcome": report.outcome,
        "study": report.study,
        "node": report.node,
        "sentence": report.sentence,
        "subject": report.subject,
        "summary": markdown(report),
    }
