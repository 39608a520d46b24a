"""Box plots of the launches, arm by arm: MLflow's own box plot has one value an arm, and its axes cannot be chosen beforehand."""

import math
from collections.abc import Sequence

from runner.records import words
from runner.records.decision import Decision
from runner.records.schema import LaunchRecord
from runner.reporting.plots import FAINT, INK, MOST_ROWS, OTHER, Plot, arm_colours, new_figures, short, svg_text, with_tooltips

MOST_COLUMNS = 4
_COUNTED = ("measure", "confirm", "noise")


def boxes(decision: Decision, launches: Sequence[LaunchRecord]) -> Plot | None:
    """One panel a primary (phase, metric), one row an arm: box over its valid launches (quartiles, whiskers to the ends), and every
    launch as a point."""
    keys = words.shown_keys(decision)[:MOST_COLUMNS]
    values = {(arm.name, key): _values(launches, arm.name, *key) for arm in decision.arms for key in keys}
    arms = [arm for arm in words.ordered(decision) if any(values[arm.name, key] for key in keys)]
    left_out = max(0, len(arms) - MOST_ROWS)
    if left_out:
        arms = sorted(arms, key=lambda arm: (arm.status != "BASELINE", -abs(words.mean_effect(arm) or 0.0)))[:MOST_ROWS]
    if not keys or not arms:
        return None
    colours = arm_colours(decision)
    figure, axes = new_figures(2.6 * len(keys) + 2.0, 0.9 + 0.27 * len(arms), len(keys), sharey=True)
    titles: dict[str, str] = {}
    for column, (axis, key) in enumerate(zip(axes, keys, strict=True)):
        for row, arm in enumerate(arms):
            found = values[arm.name, key]
            if not found:
                continue
            colour = colours.get(arm.name, (OTHER, "."))[0]
            line = {"color": colour, "linewidth": 1.0}
            axis.boxplot(
                [found],
                positions=[row],
                orientation="horizontal",
                widths=0.55,
                whis=(0, 100),
                showfliers=False,
                boxprops=line,
                whiskerprops=line,
                capprops=line,
                medianprops={"color": colour, "linewidth": 2.0},
            )
            gid = f"c{column}r{row}"
            axis.plot(found, [row] * len(found), marker="o", markersize=3, color=colour, linestyle="", alpha=0.7, gid=gid)
            titles[gid] = f"{arm.name}: {', '.join(words.number(value) for value in found)} {words.metric_unit(key[1])}"
            if arm.status == "BASELINE":
                axis.axvline(sorted(found)[len(found) // 2], color=FAINT, linewidth=1.0, linestyle="--", zorder=0)
        axis.set_title(f"{words.phase_word(key[0])}: {words.metric_word(key[1])}", loc="left")
        axis.set_xlabel(words.metric_unit(key[1]))
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", colors=INK)
    axes[0].set_yticks(range(len(arms)), [short(arm.name, 34) for arm in arms])
    axes[0].set_ylim(len(arms) - 0.4, -0.6)
    note = "a point is a launch, a box holds the middle half; dashed: the baseline's median"
    note += f"; the {left_out} arms with the smallest effects are left out" if left_out else ""
    return Plot("boxes", "Launches of every arm", with_tooltips(svg_text(figure), titles), note)


def _values(launches: Sequence[LaunchRecord], arm: str, phase: str, metric: str) -> list[float]:
    return [
        item.metrics[metric]
        for record in launches
        if record.arm == arm and record.purpose in _COUNTED
        if (item := record.phase(phase)) is not None and item.valid and math.isfinite(item.metrics.get(metric, math.nan))
    ]
