"""The plots of a report: matplotlib to SVG. Text stays text, and the ink is named, so that one drawing serves a dark page, a light
page and paper: in the page the named colours become CSS variables, in a file of its own they get a light palette."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.records import words
from runner.records.decision import ArmResult, Decision
from runner.records.schema import LaunchRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins that occur nowhere else in an SVG of matplotlib: stand-in -> (CSS variable, light value).
INK = "#010203"
FAINT = "#010204"
BETTER, WORSE, SAME, OPEN = "#010205", "#010206", "#010207", "#010208"
SERIES = ("#010211", "#010212", "#010213", "#010214", "#010215", "#010216", "#010217", "#010218")
OTHER = "#010219"
COLOURS: Mapping[str, tuple[str, str]] = {
    INK: ("--ink", "#1c1f23"),
    FAINT: ("--faint", "#c9ced6"),
    BETTER: ("--better", "#0b7a53"),
    WORSE: ("--worse", "#c2410c"),
    SAME: ("--same", "#64748b"),
    OPEN: ("--open", "#8a6d00"),
    OTHER: ("--other", "#9aa3af"),
    **{
        stand_in: (f"--s{index}", light)
        for index, (stand_in, light) in enumerate(
            zip(SERIES, ("#0f172a", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7b5ea7", "#8c6d1f", "#56a3d9"), strict=True)
        )
    },
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
VERDICT_INK = {"BETTER": BETTER, "WORSE": WORSE, "SAME": SAME, "UNRESOLVED": OPEN, "MIXED": OPEN}
MOST_ROWS = 60
MOST_TOOLTIPS = 300


@dataclass(frozen=True)
class Plot:
    """One drawing. `svg` holds stand-in colours; see `for_page` and `for_file`."""

    name: str
    title: str
    svg: str
    note: str = ""

    def for_page(self) -> str:
        """SVG to be put into HTML: colours are CSS variables of the page, ids cannot clash with another plot's."""
        svg = re.sub(r"#0102[01]\w", lambda found: f"var({COLOURS[found.group(0)][0]})", self.svg[self.svg.index("<svg") :])
        prefix = re.sub(r"\W", "-", self.name)
        svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', lambda found: f"{found.group(1)}{prefix}-", svg)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{_attribute(self.title)}" ', 1)

    def for_file(self, simulated: bool) -> str:
        """SVG that stands alone, on white."""
        svg = re.sub(r"#0102[01]\w", lambda found: COLOURS[found.group(0)][1], self.svg)
        end = svg.index(">", svg.index("<svg")) + 1
        mark = '<text x="4" y="12" font-size="10" fill="#b0008e" font-family="sans-serif">SIMULATED</text>' if simulated else ""
        return f'{svg[:end]}<rect width="100%" height="100%" fill="#ffffff"/>{mark}{svg[end:]}'


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    figures, axes = new_figures(width, height, 1)
    return figures, axes[0]


def new_figures(width: float, height: float, columns: int, rows: int = 1, **options: Any) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [axis for row in axes for axis in row]


_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
}


def svg_text(figure: "Figure") -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def with_tooltips(svg: str, titles: Mapping[str, str]) -> str:
    """Puts a <title> (shown by browsers under the pointer) into groups that were drawn with a gid."""
    for gid, title in titles.items():
        svg = svg.replace(f'<g id="{gid}">', f'<g id="{gid}"><title>{_attribute(title)}</title>', 1)
    return svg


def guard(draw: Callable[[], Plot | None]) -> Plot | None:
    """Draws in the house style. A plot that cannot be drawn leaves a gap, not a study without a report."""
    import matplotlib as mpl

    try:
        with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
            return draw()
    except (ValueError, KeyError, IndexError, OSError) as error:
        import sys

        print(f"report: a plot is left out: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def short(name: str, limit: int = 44) -> str:
    return name if len(name) <= limit else f"{name[: limit - 12]}...{name[-9:]}"


def arm_colours(decision: Decision) -> dict[str, tuple[str, str]]:
    """arm -> (colour, marker). The baseline and the seven largest effects have their own, the rest is grey."""
    named = [arm for arm in words.ordered(decision) if arm.values or arm.status == "BASELINE"]
    named.sort(key=lambda arm: (arm.status != "BASELINE", -abs(words.mean_effect(arm) or 0.0)))
    found = {arm.name: (SERIES[index], MARKERS[index]) for index, arm in enumerate(named[: len(SERIES)])}
    return {arm.name: found.get(arm.name, (OTHER, ".")) for arm in decision.arms}


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the points (throughput, latency) that no other one beats in both, by throughput."""
    best = [
        name
        for name, (rate, latency) in points.items()
        if not any(r >= rate and t <= latency and (r, t) != (rate, latency) for r, t in points.values())
    ]
    return sorted(best, key=lambda name: points[name][0])


def trade_off(decision: Decision) -> Plot | None:
    """Latency against throughput, one panel a phase, with the Pareto front."""
    phases = [
        phase
        for phase in _phases(decision)
        if any({"tpot_p50_ms", "output_tok_s"} <= set(arm.values.get(phase, {})) for arm in decision.arms)
    ]
    phases = [phase for phase in phases if not phase.startswith("prefill")] or phases
    if not phases:
        return None
    colours = arm_colours(decision)
    columns = min(3, len(phases))
    rows = math.ceil(len(phases) / columns)
    figure, axes = new_figures(2.9 * columns + 0.4, 2.7 * rows + 0.7, columns, rows)
    titles = {}
    for number, (axis, phase) in enumerate(zip(axes, phases, strict=False)):
        points = {
            arm.name: (values["output_tok_s"], values["tpot_p50_ms"])
            for arm in decision.arms
            if {"output_tok_s", "tpot_p50_ms"} <= set(values := arm.values.get(phase, {}))
        }
        front = [points[name] for name in pareto(points)]
        axis.plot([x for x, _ in front], [y for _, y in front], color=INK, linewidth=1, linestyle="--", drawstyle="steps-post")
        axis.plot(
            [x for x, _ in front],
            [y for _, y in front],
            color=INK,
            marker="o",
            markersize=12,
            markerfacecolor="none",
            linestyle="",
            linewidth=0,
        )
        for index, (name, (rate, latency)) in enumerate(points.items()):
            colour, marker = colours[name]
            gid = f"p{number}a{index}"
            axis.plot([rate], [latency], marker=marker, color=colour, markersize=6, linestyle="", gid=gid)
            titles[gid] = f"{name}: {words.number(rate)} tok/s, TPOT {words.number(latency)} ms"
        axis.set_title(phase, loc="left")
        axis.set_xlabel("output tok/s")
        axis.set_ylabel("TPOT p50, ms")
        axis.margins(0.12)
    for axis in axes[len(phases) :]:
        axis.set_visible(False)
    put_legend(figure, colours, decision)
    return Plot(
        "trade-off",
        "Latency against throughput",
        with_tooltips(svg_text(figure), titles),
        "lower right is better; ringed and dashed: Pareto front",
    )


def put_legend(figure: "Figure", colours: Mapping[str, tuple[str, str]], decision: Decision) -> None:
    from matplotlib.lines import Line2D

    shown = [(name, look) for name, look in colours.items() if look[0] != OTHER]
    shown.sort(key=lambda item: SERIES.index(item[1][0]))
    handles = [Line2D([], [], color=colour, marker=marker, linestyle="", label=short(name, 34)) for name, (colour, marker) in shown]
    if any(look[0] == OTHER and arm.values for arm in decision.arms if (look := colours[arm.name])):
        handles.append(Line2D([], [], color=OTHER, marker=".", linestyle="", label="other arms"))
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=2 if len(handles) > 3 else len(handles),
            fontsize=8,
            labelcolor=INK,
            frameon=False,
        )


def _phases(decision: Decision) -> list[str]:
    return list(dict.fromkeys(phase for arm in decision.arms for phase in arm.values))


def in_time(decision: Decision, launches: Sequence[LaunchRecord], phase: str, metric: str) -> Plot | None:
    """Every launch at its time: drift shows as a slope, two modes as two levels."""
    found = [
        (record, item.metrics[metric], item.valid)
        for record in launches
        if record.purpose not in ("prime", "screen", "smoke")
        and (item := record.phase(phase))
        and math.isfinite(item.metrics.get(metric, math.nan))
    ]
    if not found:
        return None
    start = min(record.started_at for record, _, _ in found)
    colours = arm_colours(decision)
    figure, axis = new_figure(7.6, 2.6)
    titles = {}
    crowded = len(found) > MOST_TOOLTIPS
    crowd: dict[str, list[tuple[float, float]]] = {}
    for index, (record, value, valid) in enumerate(found):
        colour, marker = colours.get(record.arm, (OTHER, "."))
        marker, minute = marker if valid else "x", (record.started_at - start) / 60
        if crowded and colour == OTHER:
            crowd.setdefault(marker, []).append((minute, value))
            continue
        gid = f"l{index}"
        axis.plot([minute], [value], marker=marker, color=colour, markersize=5, linestyle="", gid=gid)
        titles[gid] = f"{record.arm}, block {record.block}: {words.number(value)}{'' if valid else ' (not counted: INVALID)'}"
    for marker, points in crowd.items():
        axis.plot([x for x, _ in points], [y for _, y in points], marker=marker, color=OTHER, markersize=4, linestyle="", zorder=1)
    baseline = [((record.started_at - start) / 60, value) for record, value, valid in found if record.arm == decision.baseline and valid]
    if len(baseline) > 1:
        axis.plot([x for x, _ in baseline], [y for _, y in baseline], color=SERIES[0], linewidth=0.8, alpha=0.6)
    starts = {record.block: (record.started_at - start) / 60 for record, _, _ in reversed(found)}
    for block, minute in starts.items():
        axis.axvline(minute, color=FAINT, linewidth=0.8, linestyle=":", gid=f"b{block}")
    axis.set_xlabel("minutes since the first launch (dotted: a block begins)")
    axis.set_ylabel(f"{words.metric_word(metric)}, {words.metric_unit(metric)}")
    axis.set_title(f"{phase}: {words.metric_word(metric)}, launch by launch", loc="left")
    put_legend(figure, colours, decision)
    return Plot(
        f"time-{phase}-{metric}",
        f"{metric} of {phase} in time order",
        with_tooltips(svg_text(figure), titles),
        "line: the baseline; x: not counted",
    )


def distributions(samples: Mapping[str, Mapping[str, Sequence[float]]], phase: str, decision: Decision, per_request: bool) -> Plot | None:
    """Cumulative distributions of TTFT and TPOT (ms) by arm. `samples`: `ttft`/`tpot` -> arm -> values."""
    panels = [(name, by_arm) for name, by_arm in samples.items() if any(len(values) > 1 for values in by_arm.values())]
    if not panels:
        return None
    colours = arm_colours(decision)
    figure, axes = new_figures(7.6, 2.9, len(panels))
    for axis, (name, by_arm) in zip(axes, panels, strict=True):
        for arm, values in by_arm.items():
            ordered = sorted(value for value in values if math.isfinite(value))
            if len(ordered) < 2:
                continue
            colour, marker = colours.get(arm, (OTHER, "."))
            quantiles = _thin(ordered)
            axis.plot(
                [value for value, _ in quantiles],
                [share for _, share in quantiles],
                color=colour,
                linewidth=1.3,
                drawstyle="steps-post",
                marker="" if per_request else marker,
                markersize=4,
            )
        axis.set_xlabel(f"{name.upper()}, ms")
        axis.set_ylabel("share at or below")
        axis.set_title(f"{phase}: {name.upper()}", loc="left")
        axis.set_ylim(0, 1.02)
    put_legend(figure, colours, decision)
    what = "every request of valid launches" if per_request else "launch medians (request files are not there)"
    return Plot(f"distribution-{phase}", f"TTFT and TPOT of {phase}", svg_text(figure), what)


def _thin(ordered: Sequence[float], most: int = 160) -> list[tuple[float, float]]:
    """At most `most` points of the empirical distribution; the ends stay."""
    count = len(ordered)
    picks = range(count) if count <= most else sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
    return [(ordered[index], (index + 1) / count) for index in picks]


def clocks(decision: Decision, launches: Sequence[LaunchRecord]) -> Plot | None:
    """SM clock and power of every launch in time order."""
    rows = [
        (record.started_at, record.arm, [phase.telemetry for phase in record.phases])
        for record in launches
        if any(phase.telemetry.sm_clock_mhz_p50 is not None or phase.telemetry.power_w_mean is not None for phase in record.phases)
    ]
    if not rows:
        return None
    start = min(row[0] for row in rows)
    colours = arm_colours(decision)
    figure, axes = new_figures(7.6, 2.6, 2)
    kinds = (("sm_clock_mhz_p50", "SM clock (median), MHz"), ("power_w_mean", "power of one GPU (mean), W"))
    for axis, (column, label) in zip(axes, kinds, strict=True):
        for name, (colour, marker) in colours.items():
            found = [
                (at, [getattr(item, column) for item in seen if getattr(item, column) is not None]) for at, arm, seen in rows if arm == name
            ]
            points = [((at - start) / 60, sum(values) / len(values)) for at, values in found if values]
            axis.plot([x for x, _ in points], [y for _, y in points], marker=marker, color=colour, markersize=4, linestyle="")
        axis.set_xlabel("minutes")
        axis.set_title(label, loc="left")
    return Plot("clocks", "GPU clocks and power", svg_text(figure), "one point a launch (mean over its phases); colours as above")


def failed_arms(decision: Decision) -> list[ArmResult]:
    """Arms without a verdict that are not the baseline."""
    return [arm for arm in words.ordered(decision) if arm.verdict is None and arm.status != "BASELINE"]
