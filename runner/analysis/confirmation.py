"""Does the recommendation hold in fresh blocks, which had no part in choosing it?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from runner.analysis.hypotheses import Group
from runner.analysis.observations import block_table
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord

LEVEL = 0.05


@dataclass(frozen=True)
class Confirmation:
    """`done`: there were fresh pairs. `confirmed`: at least one BETTER hypothesis is better again (one-sided 5 %, variance of the
    whole study) and none is worse. `effects`: (phase, metric) -> fresh estimate, percent, positive is better."""

    done: bool = False
    confirmed: bool = False
    pairs: int = 0
    effects: dict[tuple[str, str], float] = field(default_factory=dict)


def confirmation(plan: Plan, launches: Sequence[LaunchRecord], states: Sequence[Group], arm: str) -> Confirmation:
    """From launches of purpose `confirm`: differences to the baseline in the same fresh block."""
    again, against, most = 0, 0, 0
    fresh: dict[tuple[str, str], float] = {}
    for state in states:
        column = state.column(arm)
        if arm not in state.arms or state.result is None or column is None:
            continue
        table = block_table(launches, state.phase, state.metric, (plan.baseline, arm), purposes=("confirm",))
        both = table.mask.all(axis=1)
        pairs = int(both.sum())
        if not pairs:
            continue
        most = max(most, pairs)
        difference = float(np.mean(table.values[both, 1] - table.values[both, 0]))
        fresh[(state.phase, state.metric)] = state.percent(difference)
        sd, df = float(state.result.last.launch_sd[0, column]), float(state.result.last.df[0, column])
        limit = float(-stdtrit(max(df, 1.0), LEVEL)) * sd * np.sqrt(2 / pairs)
        gain = difference if state.higher_is_better else -difference
        if state.verdict(arm) == "BETTER" and gain > limit + state.rules.gap:
            again += 1
        if gain < -limit - state.rules.gap:
            against += 1
    return Confirmation(done=most > 0, confirmed=again > 0 and against == 0, pairs=most, effects=fresh)
