"""The recommendation, in words that a careful engineer would sign: what is proved, what is not, what could not be tested."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.analysis.confirmation import Confirmation
from runner.analysis.effects import effect_sentences, metric_word, place
from runner.analysis.hypotheses import Group
from runner.records.decision import ArmResult, Effect, HypothesisResult, Recommendation
from runner.records.plan import Plan
from runner.records.schema import Command, LaunchRecord
from runner.spec.protocol import Protocol


@dataclass(frozen=True)
class Facts:
    """Everything the recommendation may speak of."""

    plan: Plan
    protocol: Protocol
    arms: Sequence[ArmResult]
    states: Sequence[Group]
    best: Sequence[tuple[str, float]]
    confirmation: Confirmation
    launches: Sequence[LaunchRecord]
    has_floor: bool
    complete: bool
    effects: Sequence[Effect]


MANY_BLOCKS = 30  # nobody should be advised to launch that often
ALONE = "Write a grid to compare with, or repeat this study later: the runner compares it with nothing by itself."
CLOSED = "Vary something else: what this grid varies is not in force here; the reasons stand under what could not be tested."


def recommend(facts: Facts) -> Recommendation:
    """An arm is recommended when it is BETTER; it is called confirmed only after fresh blocks said so again."""
    baseline = next(arm for arm in facts.arms if arm.name == facts.plan.baseline)
    chosen = facts.best[0][0] if facts.best else None
    confirmed = chosen is not None and facts.confirmation.confirmed
    refuted = chosen is not None and facts.confirmation.done and not confirmed and _enough_pairs(facts)
    alone = baseline.status == "BASELINE" and len(facts.arms) == 1
    closed = not alone and _all_closed(facts, baseline)
    if alone:
        arm, sentence = None, "No recommendation: this study has one arm, and nothing to compare it with."
    elif closed:
        arm, sentence = facts.plan.baseline, _nothing_left(facts)
    elif baseline.status != "BASELINE" or not any(state.table.mask[:, 0].any() for state in facts.states):
        arm, sentence = None, _without_baseline(baseline)
    elif chosen is not None and not refuted:
        arm, sentence = chosen, _for_arm(facts, chosen, confirmed)
    else:
        arm, sentence = facts.plan.baseline, _for_baseline(facts, chosen if refuted else None)
    if facts.plan.simulated:
        sentence = f"SIMULATED. {sentence}"
    command = _command(facts.launches, arm) if arm is not None else None
    return Recommendation(
        arm=arm,
        confirmed=confirmed and arm == chosen,
        sentence=sentence,
        command=command.argv if command is not None else (),
        env=dict(command.env) if command is not None else {},
        proved=tuple(_proved(facts)),
        not_proved=tuple(_not_proved(facts, arm, confirmed)),
        not_testable=tuple(_not_testable(facts)),
        next_experiment=ALONE if alone else CLOSED if closed else _next_experiment(facts, arm, confirmed),
    )


def _enough_pairs(facts: Facts) -> bool:
    return facts.confirmation.pairs >= facts.protocol.confirm_blocks


def _command(launches: Sequence[LaunchRecord], arm: str) -> Command | None:
    """Of the arm's last launch that ended well, measured ones first."""
    good = [launch for launch in launches if launch.arm == arm and launch.outcome == "ok"]
    measured = [launch for launch in good if launch.purpose in ("measure", "noise", "confirm")]
    last = (measured or good)[-1:]
    return last[0].command if last else None


def _streams(launches: Sequence[LaunchRecord]) -> dict[str, int | None]:
    return {phase.phase: phase.concurrency for launch in launches for phase in launch.phases}


def _said(result: HypothesisResult, streams: dict[str, int | None]) -> str:
    word = "better" if result.verdict == "BETTER" else "worse"
    size = abs(result.effect_pct or 0.0)
    ends = (
        f"{result.low_pct:+.1f} to {result.high_pct:+.1f}" if result.low_pct is not None and result.high_pct is not None else "no interval"
    )
    return (
        f"{metric_word(result.metric)} {size:.1f} % {word} {place(result.phase, streams)} "
        f"(interval {ends}; {result.launches} launches against {result.baseline_launches})"
    )


def _for_arm(facts: Facts, name: str, confirmed: bool) -> str:
    arm = next(arm for arm in facts.arms if arm.name == name)
    streams = _streams(facts.launches)
    better = [_said(result, streams) for result in arm.hypotheses if result.verdict == "BETTER"]
    rest = [result for result in arm.hypotheses if result.verdict == "UNRESOLVED"]
    what = name if "=" in name else f"{name} ({_levels(arm, facts.plan)})"
    text = f"Use {what}: {'; '.join(better)}."
    if confirmed:
        text += f" Confirmed in {facts.confirmation.pairs} fresh blocks."
    elif facts.confirmation.done:
        text += f" Not confirmed yet: {facts.confirmation.pairs} of {facts.protocol.confirm_blocks} fresh blocks are in."
    else:
        text += " Not confirmed in fresh blocks yet; the best of several overstates itself, see the adjusted effect."
    if rest:
        text += f" Not resolved: {', '.join(place(result.phase, streams) for result in rest)}."
    if not arm.attributed:
        text += " Not every factor was observed in force, so the gain is the configuration's, not proved to be the flag's."
    return text


def _levels(arm: ArmResult, plan: Plan) -> str:
    changed = [f"{factor}={level}" for factor, level in arm.levels.items() if plan.baseline_levels.get(factor) != level]
    return ", ".join(changed) or "no change"


def _for_baseline(facts: Facts, refuted: str | None) -> str:
    judged = [arm for arm in facts.arms if arm.status == "MEASURED" and arm.verdict is not None]
    if refuted is not None:
        return f"Keep the baseline: {refuted} looked better, but fresh blocks did not show it again."
    if not judged:
        return "Keep the baseline: no other arm could be measured, so nothing speaks for a change."
    counts = {word: sum(arm.verdict == word for arm in judged) for word in ("BETTER", "WORSE", "MIXED", "SAME", "UNRESOLVED")}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    excluded = [arm.name for arm in judged if arm.verdict == "BETTER"]
    tail = f" ({', '.join(excluded)}: better, but not fit to be recommended)" if excluded else ""
    if counts["UNRESOLVED"] == len(judged):
        return f"Keep the baseline: nothing was resolved ({words}); this study could not see effects as small as the margins."
    return f"Keep the baseline: no arm is better without being worse elsewhere ({words}){tail}."


def _without_baseline(baseline: ArmResult) -> str:
    why = f" ({baseline.reason})" if baseline.reason else ""
    return f"No recommendation: the baseline was not measured{why}, so there is nothing to compare with."


def _all_closed(facts: Facts, baseline: ArmResult) -> bool:
    """Screens closed every other arm, so nothing was left to compare and the baseline was not launched to be measured."""
    others = [arm for arm in facts.arms if arm is not baseline]
    return baseline.status == "BASELINE" and not baseline.launches and all(arm.status in ("INERT", "REJECTED") for arm in others)


def _nothing_left(facts: Facts) -> str:
    others = [arm.status for arm in facts.arms if arm.name != facts.plan.baseline]
    words = ", ".join(f"{others.count(word)} {word}" for word in dict.fromkeys(others))
    return f"Keep the baseline: no other arm was left to measure ({words}), so nothing was compared and the baseline was not measured."


def _proved(facts: Facts) -> list[str]:
    streams = _streams(facts.launches)
    lines = [
        f"{arm.name}: {_said(result, streams)}"
        for arm in facts.arms
        if arm.status == "MEASURED"
        for result in arm.hypotheses
        if result.verdict in ("BETTER", "WORSE")
    ]
    for arm in facts.arms:
        same = [result for result in arm.hypotheses if result.verdict == "SAME"] if arm.status == "MEASURED" else []
        if same:
            where = ", ".join(
                f"{metric_word(result.metric)} {place(result.phase, streams)} (within {result.margin_pct:g} %)" for result in same
            )
            lines.append(f"{arm.name}: same as the baseline: {where}")
    return lines + effect_sentences(facts.effects, facts.launches, facts.protocol)


def _not_proved(facts: Facts, chosen: str | None, confirmed: bool) -> list[str]:
    streams = _streams(facts.launches)
    lines = []
    for arm in facts.arms:
        for result in arm.hypotheses if arm.status == "MEASURED" else ():
            if result.verdict == "UNRESOLVED":
                seen = f"; an effect of {result.could_see_pct:.1f} % would have been seen" if result.could_see_pct is not None else ""
                lines.append(f"{arm.name}: {metric_word(result.metric)} {place(result.phase, streams)} is unresolved{seen}")
        if arm.status == "MEASURED" and not arm.attributed and arm.name != facts.plan.baseline:
            grades = ", ".join(f"{item.factor} {item.grade}" for item in arm.evidence if item.grade != "observed") or "no evidence"
            lines.append(f"{arm.name}: that its flags were in force ({grades})")
    if chosen is not None and chosen != facts.plan.baseline and not confirmed:
        lines.append(f"{chosen}: that the gain holds in fresh blocks")
    lines.append("anything outside the measured phases: other lengths, other concurrency, other models, other nodes")
    if not any(launch.fingerprint is not None and launch.fingerprint.state == "usable" for launch in facts.launches):
        lines.append("that outputs are unchanged: no usable output fingerprint was taken")
    return lines


def _not_testable(facts: Facts) -> list[str]:
    lines: dict[str, None] = {}
    for arm in facts.arms:
        if arm.status == "FAILED":
            lines[f"{arm.name}: did not serve ({arm.failure_class or 'unknown'}): {arm.reason}"] = None
        elif arm.status == "REJECTED":
            lines[f"{arm.name}: refused at start: {arm.reason}"] = None
        elif arm.status == "INERT":
            lines[f"{arm.name}: its flags were not in force here; it is the same as {arm.same_as}"] = None
        elif arm.status in ("INVALID", "BROKEN"):
            lines[f"{arm.name}: {arm.status}: {arm.reason}"] = None
    refused: dict[str, list[str]] = {}
    for cell in facts.plan.cells:
        if cell.status == "REJECTED":
            reason = cell.sentence or cell.reason or "refused"
            refused.setdefault(reason, []).append(", ".join(f"{factor}={level}" for factor, level in cell.levels.items()))
    for reason, cells in refused.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        lines[f"{cells[0]}{more}: {reason}"] = None
    return list(lines)


def _next_experiment(facts: Facts, chosen: str | None, confirmed: bool) -> str:
    """The experiment that would change the answer most for its cost."""
    if chosen is None:
        return "Make the baseline serve; until then nothing can be compared."
    if not facts.complete:
        return "Resume this study: the same command continues it."
    bimodal = [group for group in facts.states if group.mode_gap > 0]
    if bimodal:
        return f"Find out what sets the node's two speeds ({bimodal[0].phase}: pinning, clocks, NUMA); until then small effects cannot be judged."
    if chosen != facts.plan.baseline and not confirmed:
        return f"Run fresh blocks of {chosen} against the baseline (protocol.confirm=true)."
    # What is worse somewhere and better nowhere is not recommended whatever else comes out; only an open arm can change the answer.
    undecided = [arm for arm in facts.arms if arm.status == "MEASURED" and arm.verdict in ("UNRESOLVED", "MIXED", "BETTER")]
    open_rows = [(result, arm) for arm in undecided for result in arm.hypotheses if result.verdict == "UNRESOLVED"]
    if open_rows:
        reachable = [(result, arm) for result, arm in open_rows if result.could_see_pct is not None]
        if reachable:
            result, arm = min(reachable, key=lambda row: (row[0].could_see_pct or np.inf) / row[0].margin_pct)
            more = max(2.0, ((result.could_see_pct or 0.0) / result.margin_pct) ** 2)
            blocks = int(np.ceil(result.launches * more))
            what = f"{metric_word(result.metric)} in {result.phase} to its margin of {result.margin_pct:g} %"
            if blocks > MANY_BLOCKS:
                return (
                    f"Make launches steadier before more of them: {arm.name} would need about {blocks} blocks to resolve {what}. Longer "
                    "phases (protocol.phase_scale), pinned clocks or a wider margin (protocol.margins) cost less."
                )
            return f"About {blocks} blocks of {arm.name} against the baseline would resolve {what}."
        return f"Repeat {open_rows[0][1].name} with {facts.protocol.min_blocks} valid blocks."
    if not facts.has_floor:
        return "Measure the node's noise floor (experiment=noise_floor); it makes every later study shorter."
    if chosen == facts.plan.baseline:
        return "No arm of this grid is left that could still be recommended; vary what was not in it."
    return f"Use {chosen} as the baseline of the next study and vary what was not in this grid."
