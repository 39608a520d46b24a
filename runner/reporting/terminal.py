"""The decision as a table at the terminal. Fits 80 columns; colours only where somebody looks."""

from typing import TYPE_CHECKING

from runner.records import words
from runner.records.decision import ArmResult, Decision, HypothesisResult
from runner.records.paths import StudyPaths
from runner.records.plan import Plan
from runner.reporting.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["Progress", "print_decision"]

_STYLES = {
    "BETTER": "bold green",
    "WORSE": "bold red",
    "MIXED": "yellow",
    "SAME": "",
    "UNRESOLVED": "yellow",
    "BASELINE": "bold",
    "FAILED": "red",
    "BROKEN": "red",
    "INERT": "dim",
    "INVALID": "red",
    "REGRESSION": "bold red",
    "IMPROVEMENT": "bold green",
}
_EXCLUSIONS_SHOWN = 8


def print_decision(decision: Decision, plan: Plan, study: StudyPaths | None = None, console: "Console | None" = None) -> None:
    """Prints the answer, the table of arms, what was excluded, and where everything lies. Writes to stdout unless `console`."""
    from rich.console import Console

    class Output(Console):
        """Rich ends the program with exit code 1 when a reader (`| head`) has seen enough; here that is nobody's failure."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = console or Output(highlight=False, soft_wrap=False)
    simulated = words.is_simulated(decision)
    if simulated:
        _say(console, "SIMULATED: no GPU was measured; these figures come from the simulated engine.", "bold magenta")
    if not decision.complete:
        _say(console, "NOT FINISHED: the study can go on; run the same command again.", "yellow")
    _say(console, decision.question or plan.question)
    _say(console, decision.recommendation.sentence, "bold")
    for text in words.night_done(decision):
        _say(console, text)
    if decision.spread:
        _print_spread(console, decision, simulated)
    else:
        _print_arms(console, decision, simulated)
    for arm in decision.arms:
        _explain(console, arm)
    _excluded(console, decision, plan)
    for warning in decision.warnings:
        _say(console, f"warning: {warning}", "yellow")
    if decision.recommendation.next_experiment:
        _say(console, f"next: {decision.recommendation.next_experiment}")
    _say(console, f"{decision.gpu_minutes:.1f} GPU minutes, engine {decision.engine.get('version', '?')}, node {decision.node}")
    if study is not None:
        for label, path in (("report", study.report), ("decision", study.decision), ("journal", study.journal)):
            if path.exists():
                console.print(f"{label}: {path}", markup=False, overflow="ignore", crop=False, no_wrap=True, soft_wrap=True)


def _say(console: "Console", text: str, style: str = "") -> None:
    if text:
        console.print(text, style=style, markup=False)


def _print_spread(console: "Console", decision: Decision, simulated: bool) -> None:
    """An A/A study's table; the means and the launches give way where the terminal is narrow."""
    from rich import box
    from rich.table import Table

    rows = words.spread_table(decision)
    heads = [head for head in rows[0] if console.width >= 100 or head not in ("mean", "n")]
    _say(console, f"{'SIMULATED  ' if simulated else ''}{decision.study}: {words.SPREAD_MEANING}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head, justify="left" if head in ("metric", "phase") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_plain(row[head]) for head in heads))
    console.print(table)


def _print_arms(console: "Console", decision: Decision, simulated: bool) -> None:
    """A table with one column a hypothesis where it fits, else one heading line an arm and one line a hypothesis."""
    keys = words.hypothesis_keys(decision)
    longest = max((len(arm.name) for arm in decision.arms), default=8)
    title = f"{'SIMULATED  ' if simulated else ''}{decision.study}"
    meaning = "effect in % against the baseline, + is better, [simultaneous interval]"
    if decision.night is not None:
        meaning = "tonight; change in % against the accepted nights, + is better, [interval]"
    column = 19 if decision.night is None else 30
    needed = min(longest, 44) + 10 + column * len(keys) + 12 + 14 + 2 * (len(keys) + 4)
    if needed <= console.width:
        console.print(_wide(decision, keys, f"{title}: {meaning}"))
    else:
        _say(console, title, "bold")
        _say(console, meaning)
        _print_narrow(console, decision, keys)


def _wide(decision: Decision, keys: list[tuple[str, str]], title: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_style="bold")
    table.add_column("arm", overflow="fold", min_width=12)
    table.add_column("verdict" if decision.night is None else "tonight", no_wrap=True)
    for phase, metric in keys:
        table.add_column(f"{words.phase_word(phase)} {words.metric_word(metric)}", justify="right")
    table.add_column("evidence", no_wrap=True)
    table.add_column("launches", justify="right", no_wrap=True)
    for arm in words.ordered(decision):
        found = [words.find(arm, phase, metric) for phase, metric in keys]
        table.add_row(
            _plain(arm.name),
            _word(words.outcome(arm)),
            *(_plain(_cell(decision, arm, key, item)) for key, item in zip(keys, found, strict=True)),
            words.evidence_word(arm, words.baseline_levels(decision)),
            _launches(arm),
        )
    return table


def _print_narrow(console: "Console", decision: Decision, keys: list[tuple[str, str]]) -> None:
    from rich.text import Text

    labels = {key: f"{words.phase_word(key[0])} {words.metric_word(key[1])}" for key in keys}
    left = max(16, min(max(len(arm.name) for arm in decision.arms), console.width - 44))
    for arm in words.ordered(decision):
        word = words.outcome(arm)
        right = Text.assemble(
            "  ", _word(f"{word:<10}", word), f"  {words.evidence_word(arm, words.baseline_levels(decision)):<12}  n={_launches(arm)}"
        )
        console.print(Text(f"{arm.name:<{left}}", style="bold"), end="" if len(arm.name) <= left else "\n", soft_wrap=True)
        console.print(right if len(arm.name) <= left else Text(" " * left) + right, no_wrap=True, crop=False, overflow="ignore")
        if arm.status in ("REJECTED", "FAILED", "INERT"):
            continue  # nothing was compared: the reason below says why
        if decision.night is not None:
            for key in keys:
                if text := words.night_cell(decision, arm, *key):
                    console.print(Text(f"    {labels[key]:<26}  {text:>44}"), no_wrap=True, crop=False, overflow="ignore")
            continue
        for item in (found for key in keys if (found := words.find(arm, *key))):
            label = labels[(item.phase, item.metric)]
            line = Text.assemble(f"    {label:<26} ", _word(f"{item.verdict.lower():<10}", item.verdict), f"  {words.interval(item):>20}")
            console.print(line, no_wrap=True, crop=False, overflow="ignore")


def _cell(decision: Decision, arm: ArmResult, key: tuple[str, str], item: HypothesisResult | None) -> str:
    if decision.night is not None:
        return words.night_cell(decision, arm, *key)
    return words.interval(item) if item else ""


def _plain(text: str) -> "Text":
    from rich.text import Text

    return Text(text)


def _word(text: str, of: str | None = None) -> "Text":
    from rich.text import Text

    return Text(text, style=_STYLES.get(of or text, ""))


def _launches(arm: ArmResult) -> str:
    return f"{arm.launches}" + (f", {arm.failed_launches} failed" if arm.failed_launches else "")


def _explain(console: "Console", arm: ArmResult) -> None:
    """One line for an arm whose outcome needs a reason."""
    named = arm.failure_class if arm.failure_class and arm.failure_class not in arm.reason else ""
    reasons = [f"same as {arm.same_as}" if arm.same_as and "same as" not in arm.reason else "", named, arm.reason]
    if arm.verdict in ("BETTER", "WORSE", "MIXED") and not arm.attributed and not arm.night:
        reasons.append("a factor is only resolved, not observed: the effect is real, but not shown to be the flag's doing")
    if arm.verdict == "UNRESOLVED" and not arm.night:
        seen = [item.could_see_pct for item in arm.hypotheses if item.verdict == "UNRESOLVED" and item.could_see_pct is not None]
        if seen:
            reasons.append(f"this study could have seen {max(seen):.1f} %")
    text = "; ".join(reason for reason in reasons if reason)
    if text:
        _say(console, f"{arm.name}: {words.outcome(arm)}: {text}")


def _excluded(console: "Console", decision: Decision, plan: Plan) -> None:
    _say(console, words.counts(decision, plan))
    groups = words.exclusions(plan.cells)
    for status, refused_at, reason, levels in groups[:_EXCLUSIONS_SHOWN]:
        where = f" at {refused_at}" if refused_at else ""
        _say(console, f"  {len(levels)} x {status}{where}: {reason}")
    if len(groups) > _EXCLUSIONS_SHOWN:
        _say(console, f"  and {len(groups) - _EXCLUSIONS_SHOWN} more reasons (in the report)")
