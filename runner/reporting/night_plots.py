"""Plots of a night: what moved against the accepted nights, and the node's history night by night."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from runner.records import words
from runner.records.decision import Decision
from runner.records.metrics import BY_NAME
from runner.records.night import NightReport
from runner.reporting.plots import (
    BETTER,
    FAINT,
    INK,
    SAME,
    WORSE,
    Plot,
    arm_colours,
    new_figure,
    put_legend,
    short,
    svg_text,
    with_tooltips,
)

VERDICT_INK = {"REGRESSION": WORSE, "IMPROVEMENT": BETTER, "quiet": SAME}


def changes(night: NightReport) -> Plot | None:
    """Every watched quantity's change against the accepted nights, with its interval; 0 is a line."""
    if not night.shifts:
        return None
    rows = sorted(night.shifts, key=lambda shift: shift.change_pct)
    figure, axis = new_figure(7.6, 0.9 + 0.27 * len(rows))
    axis.axvline(0, color=INK, linewidth=0.9)
    titles = {}
    for index, shift in enumerate(rows):
        colour, gid = VERDICT_INK[shift.verdict], f"row{index}"
        axis.plot([shift.low_pct, shift.high_pct], [index, index], color=colour, linewidth=2.2, solid_capstyle="round")
        face = "none" if shift.verdict == "quiet" else colour
        axis.plot([shift.change_pct], [index], marker="o", markersize=6, color=colour, markerfacecolor=face, gid=gid, linestyle="")
        titles[gid] = f"{shift.verdict}: {words.signed(shift.change_pct)} %, {shift.launches} launches of {shift.nights} nights"
    names = [
        f"{short(shift.quantity.arm, 30)}, {words.phase_word(shift.quantity.phase)} {words.metric_word(shift.quantity.metric)}"
        for shift in rows
    ]
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(-0.7, len(rows) - 0.3)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("change against the accepted nights, % (positive is better)")
    return Plot(
        "night-changes", "Tonight against the accepted nights", with_tooltips(svg_text(figure), titles), "filled: moved; hollow: quiet"
    )


def history(decision: Decision, night: NightReport) -> list[tuple[str, str]]:
    """(phase, metric) that the history knows of this study's experiment, in the order of the hypotheses."""
    known = {tuple(name.split("|")[1:]) for row in night.history for name in row["means"]}
    return [key for key in words.hypothesis_keys(decision) if key in known]


def in_history(decision: Decision, night: NightReport, phase: str, metric: str) -> Plot | None:
    """Night by night, each arm in percent of its mean over the accepted nights; alarms are crosses, tonight is the last one."""
    described = BY_NAME.get(metric)
    sign = 1.0 if described is not None and described.higher_is_better else -1.0
    rows = [row for row in night.history if any(name.split("|")[1:] == [phase, metric] for name in row["means"])]
    if len(rows) < 2:
        return None
    colours = arm_colours(decision)
    figure, axis = new_figure(7.6, 2.6)
    titles: dict[str, str] = {}
    for number, (arm, (colour, marker)) in enumerate(colours.items()):
        points = _points(rows, f"{arm}|{phase}|{metric}", set(night.baseline_nights), sign)
        axis.plot([x for x, _, _ in points], [y for _, y, _ in points], color=colour, linewidth=0.9, alpha=0.7)
        for index, (x, y, row) in enumerate(points):
            gid, bad = f"h{number}n{index}", row["outcome"] in ("regression", "failed")
            axis.plot(
                [x], [y], marker="X" if bad else marker, color=WORSE if bad else colour, markersize=7 if bad else 5, linestyle="", gid=gid
            )
            titles[gid] = f"{row['study']}: {arm}: {words.signed(y)} %, {row['outcome']}"
    for index, row in enumerate(rows):
        if row["accepted"]:
            axis.axvline(index, color=FAINT, linewidth=1.2, linestyle="--", gid=f"a{index}")
    axis.axhline(0, color=INK, linewidth=0.7)
    shown = range(0, len(rows), max(1, -(-len(rows) // 8)))
    axis.set_xticks(list(shown), [time.strftime("%d %b", time.localtime(rows[index]["at"])) for index in shown])
    axis.set_ylabel("change, % (positive is better)")
    axis.set_title(f"{phase}: {words.metric_word(metric)}, night by night", loc="left")
    put_legend(figure, colours, decision)
    note = "0: mean of the accepted nights; crosses: nights with an alarm; dashed: a baseline was accepted; tonight is the last"
    return Plot(f"nights-{phase}-{metric}", f"{metric} of {phase} over the nights", with_tooltips(svg_text(figure), titles), note)


def _points(rows: Sequence[Mapping[str, Any]], name: str, baseline: set[str], sign: float) -> list[tuple[int, float, Mapping[str, Any]]]:
    """(place of the night, percent, its row). Without accepted nights the first night is 0."""
    found = [(index, row) for index, row in enumerate(rows) if name in row["means"]]
    if not found:
        return []
    accepted = [row["means"][name] for _, row in found if row["study"] in baseline] or [found[0][1]["means"][name]]
    usual = sum(accepted) / len(accepted)
    return [(index, 100 * ((row["means"][name] / usual) ** sign - 1), row) for index, row in found]
