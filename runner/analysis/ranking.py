"""Which arms may be recommended, best first."""

from collections.abc import Sequence

import numpy as np

from runner.analysis.failures import starts
from runner.analysis.hypotheses import Group
from runner.analysis.inert import inert_arms
from runner.analysis.winners_curse import adjusted_ratios
from runner.records.decision import ArmVerdict, Verdict
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord


def arm_verdict(verdicts: Sequence[Verdict]) -> ArmVerdict:
    """BETTER: some better, none worse. WORSE: the other way round. MIXED: both. SAME: all same. Else UNRESOLVED."""
    better, worse = "BETTER" in verdicts, "WORSE" in verdicts
    if better and worse:
        return "MIXED"
    if better or worse:
        return "BETTER" if better else "WORSE"
    return "SAME" if verdicts and all(verdict == "SAME" for verdict in verdicts) else "UNRESOLVED"


def candidates(
    states: Sequence[Group], plan: Plan, launches: Sequence[LaunchRecord], excluded: frozenset[str] = frozenset()
) -> list[tuple[str, float]]:
    """(arm, score), best first: arms that are BETTER, are not INERT or `excluded` (BROKEN), and failed at most once.

    Score: mean over the arm's primary hypotheses of the adjusted effect in units of the metric's margin, so that a percent of
    TPOT and a percent of TTFT weigh as the user said they do."""
    inert = inert_arms(plan, launches)
    scored = []
    for arm in plan.arms:
        own = [state for state in states if arm.name in state.arms]
        if arm.name == plan.baseline or arm.name in inert or arm.name in excluded or not own:
            continue
        state_of_starts = starts(launches, arm.name)
        if state_of_starts.failed > 1 or state_of_starts.rejected or arm_verdict([state.verdict(arm.name) for state in own]) != "BETTER":
            continue
        effects = []
        for state in own:
            column = state.column(arm.name)
            if state.result is None or column is None:
                continue
            ratio = float(adjusted_ratios(state.result, state.rules)[0, column])
            if np.isfinite(ratio):
                effects.append(state.percent(ratio) / state.margin_pct)
        scored.append((arm.name, float(np.mean(effects))))
    return sorted(scored, key=lambda item: (-item[1], item[0]))
