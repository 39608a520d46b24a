"""The forest plot: effects with their simultaneous intervals, the small ones visible beside an arm that is many times worse."""

from collections.abc import Sequence

from runner.records import words
from runner.records.decision import Decision, HypothesisResult
from runner.reporting.plots import INK, MOST_ROWS, OPEN, SAME, VERDICT_INK, Plot, new_figure, short, svg_text, with_tooltips

FAR_MARGINS = 25.0
LEAST_MARGINS = 4.0


def forest(decision: Decision, phase: str, metric: str) -> Plot | None:
    """Effects with their simultaneous intervals; the margin is shaded, 0 is a line."""
    rows = [(arm, item) for arm in words.ordered(decision) if (item := words.find(arm, phase, metric)) and item.effect_pct is not None]
    if not rows:
        return None
    left_out = max(0, len(rows) - MOST_ROWS)
    if left_out:
        rows = sorted(rows, key=lambda row: -abs(row[1].effect_pct or 0))[:MOST_ROWS]
    rows.sort(key=lambda row: row[1].effect_pct or 0.0)
    figure, axis = new_figure(7.6, 0.9 + 0.27 * len(rows))
    margin = rows[0][1].margin_pct
    axis.axvspan(-margin, margin, color=SAME, alpha=0.14, linewidth=0)
    axis.axvline(0, color=INK, linewidth=0.9)
    titles = {}
    edge = shown_edge([_reach(item) for _, item in rows], margin)
    beyond = any(_reach(item) > edge for _, item in rows)
    for index, (arm, item) in enumerate(rows):
        effect, colour = item.effect_pct or 0.0, VERDICT_INK.get(item.verdict, OPEN)
        low, high = (effect if item.low_pct is None else item.low_pct), (effect if item.high_pct is None else item.high_pct)
        gid = f"row{index}"
        axis.plot([max(low, -edge), min(high, edge)], [index, index], color=colour, linewidth=2.2, solid_capstyle="round")
        hollow = item.verdict in ("UNRESOLVED", "SAME")
        marker = "o" if abs(effect) <= edge else "<" if effect < 0 else ">"
        axis.plot(
            [min(max(effect, -edge), edge)],
            [index],
            marker=marker,
            markersize=6,
            color=colour,
            markerfacecolor="none" if hollow else colour,
            gid=gid,
            linestyle="",
        )
        if _reach(item) > edge:
            side = -1 if effect > 0 else 1
            axis.text(side * edge, index + 0.17, words.interval(item), fontsize=7, color=colour, ha="left" if side < 0 else "right")
        titles[gid] = f"{arm.name}: {item.verdict} {words.interval(item)} %, {item.launches} launches"
    axis.set_yticks(range(len(rows)), [short(arm.name) for arm, _ in rows])
    axis.set_ylim(-0.7, len(rows) - 0.3)
    axis.set_xlim(-1.04 * edge, 1.04 * edge)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(f"effect on {words.metric_word(metric)} against the baseline, % (positive is better)")
    axis.set_title(f"{phase}: {words.metric_word(metric)}", loc="left")
    note = f"shaded: margin of {margin:g} %; filled: decided, hollow: SAME or UNRESOLVED"
    note += "; an interval that leaves the picture is written out" if beyond else ""
    note += f"; the {left_out} smallest effects are only in the table" if left_out else ""
    return Plot(f"forest-{phase}-{metric}", f"Effects on {metric} in {phase}", with_tooltips(svg_text(figure), titles), note)


def _reach(item: HypothesisResult) -> float:
    """How far from 0 its interval or effect lies, percent."""
    return max(abs(value) for value in (item.effect_pct, item.low_pct, item.high_pct) if value is not None)


def shown_edge(reaches: Sequence[float], margin: float) -> float:
    """Where the picture ends, percent: small effects must stay visible beside an arm that is several times worse."""
    near = [reach for reach in reaches if reach <= FAR_MARGINS * margin]
    return 1.05 * max(LEAST_MARGINS * margin, max(near) if near else min(reaches))
