"""The report: one HTML file that opens anywhere, offline, on a dark or a light screen and on paper."""

from collections.abc import Sequence
from pathlib import Path

from runner.records import words
from runner.records.decision import Decision
from runner.records.files import write_text
from runner.records.paths import StudyPaths
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.reporting import box_plots, night_plots, plots, sections
from runner.reporting.budget import budget_section
from runner.reporting.forest import forest
from runner.reporting.plots import Plot
from runner.reporting.privacy import MEANINGS, Placeholders
from runner.reporting.samples import request_samples
from runner.reporting.time_table import time_section

MOST_DISTRIBUTION_PHASES = 8
MOST_TIME_PLOTS = 12


def write_report(study: StudyPaths, decision: Decision, plan: Plan, launches: Sequence[LaunchRecord]) -> Path:
    """Writes report.html and the plots as files of their own (`plots/*.svg`) into the study's folder; returns the report's path.
    Takes seconds (matplotlib). Raises OSError (disk full, read-only)."""
    drawn = draw(study, decision, launches)
    simulated = words.is_simulated(decision)
    for group in drawn.values():
        for plot in group:
            write_text(study.plots / f"{plot.name}.svg", plot.for_file(simulated))
    write_text(study.report, render(study, decision, plan, launches, drawn))
    return study.report


def draw(study: StudyPaths, decision: Decision, launches: Sequence[LaunchRecord]) -> dict[str, list[Plot]]:
    """All plots by section; a section without data has an empty list."""
    keys = words.hypothesis_keys(decision)
    phases = list(dict.fromkeys([phase for phase, _ in keys] + [phase for arm in decision.arms for phase in arm.values]))
    compared = [name for name, (colour, _) in plots.arm_colours(decision).items() if colour != plots.OTHER]
    made: dict[str, list[Plot | None]] = {
        "forest": [plots.guard(lambda p=phase, m=metric: forest(decision, p, m)) for phase, metric in keys],  # type: ignore[misc]
        "trade_off": [plots.guard(lambda: plots.trade_off(decision))],
        "boxes": [plots.guard(lambda: box_plots.boxes(decision, launches))],
        "distributions": [],
        "time": [
            plots.guard(lambda p=phase, m=metric: plots.in_time(decision, launches, p, m))  # type: ignore[misc]
            for phase, metric in words.shown_keys(decision)[:MOST_TIME_PLOTS]
        ],
        "clocks": [plots.guard(lambda: plots.clocks(decision, launches))],
    }
    if (night := decision.night) is not None:
        made["night"] = [plots.guard(lambda: night_plots.changes(night))]
        made["night"] += [
            plots.guard(lambda p=phase, m=metric: night_plots.in_history(decision, night, p, m))  # type: ignore[misc]
            for phase, metric in night_plots.history(decision, night)[:MOST_TIME_PLOTS]
        ]
    for phase in phases[:MOST_DISTRIBUTION_PHASES]:
        samples, per_request = request_samples(study, launches, phase, compared)
        made["distributions"].append(
            plots.guard(lambda s=samples, p=phase, r=per_request: plots.distributions(s, p, decision, r))  # type: ignore[misc]
        )
    return {section: [plot for plot in group if plot is not None] for section, group in made.items()}


def render(study: StudyPaths, decision: Decision, plan: Plan, launches: Sequence[LaunchRecord], drawn: dict[str, list[Plot]]) -> str:
    """The whole page as text, without machine paths."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("runner.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"signed": words.signed, "number": words.number, "levels": words.levels_text}
    keys = words.hypothesis_keys(decision)
    page = environment.get_template("report.html.jinja").render(
        decision=decision,
        plan=plan,
        simulated=words.is_simulated(decision),
        question=decision.question or plan.question or plan.experiment,
        heads=[(phase, words.metric_word(metric)) for phase, metric in keys],
        margins={
            metric: next((item.margin_pct for arm in decision.arms for item in arm.hypotheses if item.metric == metric), 0.0)
            for _, metric in keys
        },
        rows=sections.arm_rows(decision, launches, study),
        night_cells={arm.name: [words.night_cell(decision, arm, *key) for key in keys] for arm in decision.arms},
        night_done=words.night_done(decision),
        counts=words.counts(decision, plan),
        exclusions=words.exclusions(plan.cells),
        invalid=sections.invalid_counts(launches),
        plots={"night": [], "boxes": [], **drawn},
        noise=sections.noise_rows(decision),
        spread=words.spread_table(decision),
        spread_meaning=words.SPREAD_MEANING,
        telemetry=sections.telemetry_rows(decision, launches),
        budget=budget_section(study, decision, launches),
        time=time_section(study, decision, launches),
        provenance=sections.provenance(plan, decision, launches, study),
        commands=sections.commands(decision, plan, launches, study),
        launches=launches,
        placeholders=MEANINGS,
        unfair=sorted({f"{record.arm}: {text}" for record in launches for text in record.unfair}),
    )
    return Placeholders(study, launches).hide(page)
