"""A night's decision: the arms' words come from the history of the node, not from the comparison within one night.

A night has few launches on purpose: what it says is whether each arm is as it was on the accepted nights. Against its own
baseline it decides nothing, and that is no fault of the launches: nothing is INVALID for being few."""

from runner.records.decision import ArmResult, Decision, Recommendation
from runner.records.night import NightReport


def as_night(decision: Decision, night: NightReport) -> Decision:
    """The decision of a nightly study with the night's own verdict. Pure; the hypotheses against tonight's baseline stay."""
    arms = tuple(_arm(arm, night) for arm in decision.arms)
    mark = "SIMULATED. " if night.simulated else ""
    advice = Recommendation(arm=None, sentence=f"{mark}{night.sentence[:1].upper()}{night.sentence[1:]}.", next_experiment=_next(night))
    return decision.model_copy(update={"arms": arms, "recommendation": advice, "night": night})


def _arm(arm: ArmResult, night: NightReport) -> ArmResult:
    measured = any(item.metric in arm.values.get(item.phase, {}) for item in arm.hypotheses) or (arm.status == "BASELINE" and arm.values)
    if not measured or arm.status not in ("BASELINE", "MEASURED", "INVALID"):
        return arm
    verdicts = {shift.verdict for shift in night.of(arm.name)}
    worst = next((verdict for verdict in ("REGRESSION", "IMPROVEMENT", "quiet") if verdict in verdicts), "")
    word = worst or ("learning" if night.outcome not in ("busy", "unfinished") else "not judged")
    status = "MEASURED" if arm.status == "INVALID" else arm.status
    return arm.model_copy(update={"status": status, "reason": "" if arm.status == "INVALID" else arm.reason, "night": word})


def _next(night: NightReport) -> str:
    if night.outcome not in ("regression", "improvement"):
        return ""
    undo = "Undo one by one what changed, and launch again" if night.changed else "Look at the node (action=doctor), and launch again"
    return f"{undo}; if this is how the node is to be from now on: python -m runner action=accept study.name={night.study}"
