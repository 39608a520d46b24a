"""The Markdown note on a study's run: the answer, the recommended command, the verdict table. MLflow cuts at 8,000 characters."""

import shlex

from runner.records import words
from runner.records.decision import Decision
from runner.records.plan import Plan

LIMIT = 7800
BOXES = "boxes.svg"
EXPERIMENT_NOTE = """Runs that are compared are the ones with `kind = arm` (one an arm); `kind = study` holds the report, the note with the \
verdict table and the recommended command; launches are nested under their arm. Choose the study's saved view under *Views*.

Runs whose `engine_version` (and *Source*) begins with SIMULATED come from the simulated engine: no GPU was measured.

`effect_pct` is the mean of the arm's primary effects in percent against the baseline (a sort key; the verdicts stand in the tags), \
`cN/effect_pct` the effect in the phase with concurrency N. Positive is an improvement for every metric. The baseline is 0 by definition. \
Arms without a verdict (FAILED, INERT, BROKEN, INVALID) carry no metric on purpose: see their tags. In nightly studies `night_pct` is \
the arm's largest change for the worse against the accepted nights, and `verdict` the night's word for it.

Box plots of the launches lie under the study's run: *Artifacts*, `plots/boxes.svg`. (The box plot of MLflow's compare page has one value \
an arm, and its axes have to be chosen by hand.)"""


def study_note(plan: Plan, decision: Decision | None, launches: int) -> str:
    """Markdown. Rows that do not fit are counted, never dropped in silence."""
    lines = []
    if plan.simulated:
        lines += ["**SIMULATED: no GPU was measured; the figures come from the simulated engine.**", ""]
    lines += [f"**{_cell(plan.question or plan.experiment)}**", ""]
    if decision is None:
        return "\n".join([*lines, f"Running: {launches} launches so far; no verdict yet."])
    advice = decision.recommendation
    lines += [advice.sentence, ""]
    if advice.command:
        setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in advice.env.items())
        lines += ["```", f"{setting} {shlex.join(advice.command)}".strip(), "```", ""]
    lines += [f"{line}." for line in words.night_done(decision)]
    lines += [words.counts(decision, plan) + f"; {decision.gpu_minutes:.1f} GPU minutes", ""]
    lines += [f"Report: *Artifacts*, `report.html`; box plots of the launches: `plots/{BOXES}`", ""]
    if decision.spread:
        return "\n".join([*lines, *_spread(decision)])[:LIMIT]
    keys = words.hypothesis_keys(decision)
    heads = [f"{words.phase_word(phase)} {words.metric_word(metric)}" for phase, metric in keys]
    title = "SIMULATED arm" if plan.simulated else "arm"
    meaning = "Effect in % against the baseline, + is better, [simultaneous interval], evidence"
    if decision.night is not None:
        meaning = "Tonight, and change in % against the accepted nights, + is better, [interval], evidence"
    lines += [f"{meaning} of {len(decision.arms)} arms:", ""]
    lines += [f"| {title} | outcome | {''.join(head + ' | ' for head in heads)}evidence | n |", "|---" * (len(keys) + 4) + "|"]
    length, arms = len("\n".join(lines)), words.ordered(decision)
    for index, arm in enumerate(arms):
        found = [words.find(arm, phase, metric) for phase, metric in keys]
        cells = [
            _cell(arm.name),
            words.outcome(arm),
            *(
                words.night_cell(decision, arm, *key) if decision.night is not None else words.interval(item) if item else ""
                for key, item in zip(keys, found, strict=True)
            ),
            words.evidence_word(arm, plan.baseline_levels),
        ]
        row = "| " + " | ".join([*cells, str(arm.launches)]) + " |"
        length += len(row) + 1
        if length > LIMIT - 120:
            lines += ["", f"and {len(arms) - index} more arms: see report.html or decision.json among the artifacts."]
            break
        lines.append(row)
    return "\n".join(lines)[:LIMIT]


def _spread(decision: Decision) -> list[str]:
    rows = words.spread_table(decision)
    lines = [f"{words.SPREAD_MEANING[:1].upper()}{words.SPREAD_MEANING[1:]}:", ""]
    return [
        *lines,
        "| " + " | ".join(rows[0]) + " |",
        "|---" * len(rows[0]) + "|",
        *("| " + " | ".join(row.values()) + " |" for row in rows),
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
