"""Did something change since the accepted nights? Judged over launches, with the node's own night-to-night spread.

Method. For one quantity (arm, phase, metric) let y be log values of launches. The reference is the mean of the accepted nights'
means; tonight's mean differs from it by d. Its variance has two parts: between launches of a night (sigma^2, pooled within
nights) and between nights (tau^2, from differences of successive nights: von Neumann et al. 1941, so that a slow drift does not
count as noise; method of moments: Searle, Casella, McCulloch, Variance Components, 1992). Both use all quiet nights since the
baseline began, at most VARIANCE_NIGHTS, are pooled over the arms of one phase and metric, and a weak prior, so that a few lucky nights do not make the node look noiseless. The
statistic d / se is compared with a t quantile with Satterthwaite's degrees of freedom (1946), two-sided, Bonferroni over the
quantities looked at. Two nights running are pooled (a Shewhart chart with a two-point run rule: Western Electric, 1956), each
look spending half of the alarm rate. A change is named only when it is also larger than the metric's margin."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from runner.records.metrics import metric as metric_of
from runner.records.night import Night, NightOutcome, Quantity, Shift, key
from runner.records.words import metric_word, phase_word
from runner.spec.base import Strict
from runner.spec.protocol import Margins

FALSE_ALARMS = 1 / 120
"""Chance of any false alarm in one quiet night, over all quantities: one in 120 nights, half of what is promised (60)."""
MIN_NIGHTS = 4
BASELINE_NIGHTS = 7
VARIANCE_NIGHTS = 30
NAMED = 4
"""Changes that the one sentence names; all of them stand beside it."""
PRIOR_DF = 1.0
PRIOR_SD = 0.004
"""Launch-to-launch spread of a quiet node (log scale), used with the weight of PRIOR_DF launches."""


class NightVerdict(Strict):
    """`suspects`: arms to launch again before anyone is told."""

    outcome: NightOutcome
    shifts: tuple[Shift, ...] = ()
    suspects: tuple[str, ...] = ()
    baseline_nights: int = 0
    changed: dict[str, tuple[str, str]] = Field(default_factory=dict, description="what differs from the last baseline night")
    sentence: str = ""


def baseline_of(nights: Sequence[Night]) -> list[Night]:
    """The accepted nights: from the last one marked `accepted` (or the first of all) on, the first BASELINE_NIGHTS that were
    not alarms. Once they are complete they stay, so that a slow slide cannot carry the baseline along."""
    start = max((index for index, night in enumerate(nights) if night.accepted), default=0)
    good = [
        night for index, night in enumerate(nights[start:]) if night.outcome in ("quiet", "learning") or (index == 0 and night.accepted)
    ]
    return good[:BASELINE_NIGHTS]


def quiet_since(nights: Sequence[Night]) -> list[Night]:
    """Quiet nights since the baseline began, the newest VARIANCE_NIGHTS: they tell how much nights differ."""
    start = max((index for index, night in enumerate(nights) if night.accepted), default=0)
    return [night for night in nights[start:] if night.outcome in ("quiet", "learning") or night.accepted][-VARIANCE_NIGHTS:]


def judge_night(
    tonight: Night, earlier: Sequence[Night], quantities: Sequence[Quantity], margins: Margins, false_alarms: float = FALSE_ALARMS
) -> NightVerdict:
    """Compares tonight (and tonight pooled with the night before) with the accepted nights."""
    baseline = baseline_of(earlier)
    changed = what_changed(baseline[-1].identity, tonight.identity) if baseline else {}
    if len(baseline) < MIN_NIGHTS:
        sentence = f"learning: before tonight there were {len(baseline)} of the {MIN_NIGHTS} baseline nights that a judgement needs"
        return NightVerdict(outcome="learning", baseline_nights=len(baseline), changed=changed, sentence=sentence)
    usual = quiet_since(earlier)
    before = earlier[-1] if earlier and earlier[-1] not in baseline else None
    alpha = false_alarms / max(1, len(quantities)) / 2
    shifts = []
    for quantity in quantities:
        alike = [other for other in quantities if (other.phase, other.metric) == (quantity.phase, quantity.metric)]
        series = [_logs(other, usual) for other in alike]
        found = [_shift(quantity, baseline, series, [tonight], margins, alpha)]
        if before is not None and before.identity == tonight.identity:
            found.append(_shift(quantity, baseline, series, [before, tonight], margins, alpha))
        real = [shift for shift in found if shift is not None]
        if real:
            shifts.append(min(real, key=lambda shift: shift.p_value if shift.verdict != "quiet" else 1 + shift.p_value))
    worse = [shift for shift in shifts if shift.verdict == "REGRESSION"]
    better = [shift for shift in shifts if shift.verdict == "IMPROVEMENT"]
    outcome: Literal["quiet", "regression", "improvement"] = "regression" if worse else "improvement" if better else "quiet"
    suspects = tuple(dict.fromkeys(shift.quantity.arm for shift in worse))
    return NightVerdict(
        outcome=outcome,
        shifts=tuple(shifts),
        suspects=suspects,
        baseline_nights=len(baseline),
        changed=changed,
        sentence=_sentence(outcome, worse or better, changed),
    )


def _shift(
    quantity: Quantity, baseline: Sequence[Night], series: Sequence[list[np.ndarray]], now: Sequence[Night], margins: Margins, alpha: float
) -> Shift | None:
    """None when the quantity was not measured on both sides."""
    groups, fresh = _logs(quantity, baseline), _logs(quantity, now)
    if len(groups) < MIN_NIGHTS or len(fresh) < len(now):
        return None
    from scipy import special

    sigma2, tau2, df = components(series)
    means = np.array([group.mean() for group in groups])
    difference = float(np.mean([group.mean() for group in fresh]) - means.mean())
    reference = tau2 / len(groups) + float(np.mean([sigma2 / len(group) for group in groups])) / len(groups)
    tonight = tau2 / len(fresh) + float(np.mean([sigma2 / len(group) for group in fresh])) / len(fresh)
    se = math.sqrt(reference + tonight)
    described = metric_of(quantity.metric)
    sign = 1.0 if described.higher_is_better else -1.0
    p_value = float(2 * special.stdtr(df, -abs(difference) / se))
    half = float(special.stdtrit(df, 1 - alpha / 2)) * se
    ends = sorted(100 * math.expm1(sign * difference + step) for step in (-half, half))
    change = 100 * math.expm1(sign * difference)
    margin = getattr(margins, described.margin) if described.margin else 0.0
    real = p_value < alpha and abs(change) > margin
    return Shift(
        quantity=quantity,
        change_pct=change,
        low_pct=ends[0],
        high_pct=ends[1],
        p_value=p_value,
        nights=len(now),
        launches=sum(len(group) for group in fresh),
        verdict=("IMPROVEMENT" if change > 0 else "REGRESSION") if real else "quiet",
    )


def _logs(quantity: Quantity, nights: Sequence[Night]) -> list[np.ndarray]:
    return [np.log(np.asarray(night.values[key(quantity)])) for night in nights if night.values.get(key(quantity))]


def components(series: Sequence[list[np.ndarray]]) -> tuple[float, float, float]:
    """Variance between launches of a night, between nights, and degrees of freedom of their use.

    `series`: for each arm, log values night by night. Arms share the node's nights, so the spread between nights is averaged
    over arms but counts as the information of two arms at most."""
    groups = [group for arm in series for group in arm]
    within_df = sum(len(group) for group in groups) - len(groups)
    within = float(sum(((group - group.mean()) ** 2).sum() for group in groups))
    sigma2 = (within + PRIOR_DF * PRIOR_SD**2) / (within_df + PRIOR_DF)
    size = len(groups) / float(np.sum([1 / len(group) for group in groups]))
    steps = [np.diff([group.mean() for group in arm]) for arm in series if len(arm) > 1]
    squares = np.concatenate(steps) ** 2 if steps else np.zeros(0)
    nights = max((len(step) for step in steps), default=0)
    between_df = 2 * nights / 3 * min(2, len(steps))  # successive differences carry two thirds of the information
    observed = float(squares.mean()) / 2 if squares.size else 0.0
    of_means = (between_df * observed + PRIOR_DF * (sigma2 / size + (PRIOR_SD / 2) ** 2)) / (between_df + PRIOR_DF)
    tau2 = max(0.0, of_means - sigma2 / size)
    share = tau2 / max(of_means, 1e-12)
    return sigma2, tau2, 1 / (share**2 / (between_df + PRIOR_DF) + (1 - share) ** 2 / (within_df + PRIOR_DF))


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Names whose value differs between two nights: the first suspects of any change."""
    return {name: (before.get(name, "-"), now.get(name, "-")) for name in sorted({*before, *now}) if before.get(name) != now.get(name)}


def _sentence(outcome: str, shifts: Sequence[Shift], changed: Mapping[str, tuple[str, str]]) -> str:
    if outcome == "quiet":
        return "quiet: nothing moved beyond its margin"
    worst = max(shifts, key=lambda shift: abs(shift.change_pct))
    named = "; ".join(f"{name} {old} -> {new}" for name, (old, new) in list(changed.items())[:NAMED])
    named += f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    because = f"changed since the baseline: {named}" if named else "nothing that is recorded changed since the baseline"
    what = worst.quantity
    others = f", and {len(shifts) - 1} more" if len(shifts) > 1 else ""
    return (
        f"{outcome}: {because}. {what.arm}, {phase_word(what.phase)}, {metric_word(what.metric)}: {worst.change_pct:+.1f} % "
        f"({worst.low_pct:+.1f} to {worst.high_pct:+.1f}){others}"
    )
