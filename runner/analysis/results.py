"""Numbers of one arm for the decision: hypotheses with intervals, descriptive comparisons, values by phase."""

from collections.abc import Sequence

import numpy as np

from runner.analysis.dunnett import adjusted_p
from runner.analysis.hypotheses import Group, is_higher_better, margin_of
from runner.analysis.observations import MEASURING, block_table
from runner.analysis.verdicts import MIN_LAUNCHES, Rules, look
from runner.analysis.winners_curse import adjusted_ratios
from runner.records.decision import HypothesisResult
from runner.records.metrics import BY_NAME
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol

__all__ = ["MIN_LAUNCHES", "descriptive", "hypothesis_result", "phase_values"]
POWER_Z = 0.8416


def hypothesis_result(group: Group, arm: str, launches: Sequence[LaunchRecord]) -> HypothesisResult:
    """One verdict with effect, simultaneous interval, adjusted effect and what could have been seen, all in percent."""
    column = group.column(arm)
    counted = int(group.table.mask[:, column + 1].sum()) if column is not None else 0
    base = int(group.table.mask[:, 0].sum())
    notes = [group.refused[arm]] if arm in group.refused else []
    result = group.result
    if result is None or column is None or not np.isfinite(result.last.error[0, column]):
        why = f"{counted} valid launches of the arm, {base} of the baseline; {MIN_LAUNCHES} of each and {group.rules.looks[0]} blocks are needed"
        return HypothesisResult(
            phase=group.phase,
            metric=group.metric,
            verdict="UNRESOLVED",
            launches=counted,
            baseline_launches=base,
            margin_pct=group.margin_pct,
            notes=(why,),
        )
    last = result.last
    estimate, error, critical = (float(array[0, column]) for array in (last.estimate, last.error, last.critical))
    low, high = float(result.low[0, column]), float(result.high[0, column])
    bounds = sorted((group.percent(low), group.percent(high))) if np.isfinite(low) and np.isfinite(high) else [None, None]
    if group.mode_gap > 0:
        gap = 100 * float(np.expm1(group.mode_gap))
        notes.append(f"bimodal: two speeds {gap:.1f} % apart; no verdict inside that distance")
    if bool(last.noisy[0, column]):
        notes.append("its launches vary clearly more than the other arms': compared by its own variance, the others without it")
    if bool(result.conflict[0, column]):
        notes.append("the looks contradict each other (their intervals have nothing in common): something changed during the study")
    if bool(last.dropped_first[0]):
        notes.append("the study's first launch is an outlier and is not counted")
    if counted < MIN_LAUNCHES or base < MIN_LAUNCHES:
        notes.append(f"fewer than {MIN_LAUNCHES} valid launches: arm {counted}, baseline {base}")
    if np.isfinite(error) and not np.isfinite(critical):
        notes.append("one arm without a noise floor: a verdict needs a fourth block, since three pairs of a bimodal node can look alike")
    alone = int((group.table.mask[:, column + 1] & ~group.table.mask[:, 0]).sum())
    if alone:
        notes.append(f"{alone} of its launches stand in blocks without a baseline: compared through the other blocks")
    seen = (critical + POWER_Z) * error if np.isfinite(critical) else float("nan")
    return HypothesisResult(
        phase=group.phase,
        metric=group.metric,
        verdict=group.verdict(arm),
        effect_pct=group.percent(estimate),
        low_pct=bounds[0],
        high_pct=bounds[1],
        effect_adjusted_pct=group.percent(float(adjusted_ratios(result, group.rules)[0, column])),
        launches=counted,
        baseline_launches=base,
        margin_pct=group.margin_pct,
        could_see_pct=100 * float(np.expm1(seen)) if np.isfinite(seen) else None,
        p_value=_p_value(estimate, error, group.rules.family, float(last.df[0, column]), group.families),
        notes=tuple(notes),
    )


def _p_value(estimate: float, error: float, family: int, df: float, families: int) -> float | None:
    """Family-wise, as if the last look had been the only one."""
    if not error > 0 or not df > 0:
        return None
    return adjusted_p(estimate / error, family, float(np.floor(df * 10) / 10), families)


def phase_values(launches: Sequence[LaunchRecord]) -> dict[str, dict[str, float]]:
    """phase -> metric -> geometric mean over valid launches (arithmetic where a value is 0)."""
    collected: dict[str, dict[str, list[float]]] = {}
    for launch in launches:
        for phase in launch.phases:
            if launch.outcome != "ok" or not phase.valid:
                continue
            for metric, value in phase.metrics.items():
                if np.isfinite(value):
                    collected.setdefault(phase.phase, {}).setdefault(metric, []).append(value)
    return {
        phase: {metric: float(np.exp(np.mean(np.log(v)))) if min(v) > 0 else float(np.mean(v)) for metric, v in metrics.items()}
        for phase, metrics in collected.items()
    }


def descriptive(states: Sequence[Group], launches: Sequence[LaunchRecord], protocol: Protocol) -> dict[str, tuple[HypothesisResult, ...]]:
    """arm -> all other metrics with a direction: estimate and interval (Dunnett over arms, one look), no verdict."""
    columns = states[0].columns if states else ()
    primary = {(group.phase, group.metric) for group in states}
    measured = [launch for launch in launches if launch.purpose in MEASURING]
    keys = dict.fromkeys((phase.phase, metric) for launch in measured for phase in launch.phases for metric in phase.metrics)
    found: dict[str, list[HypothesisResult]] = {arm: [] for arm in columns[1:]}
    for phase, metric in keys:
        known = BY_NAME.get(metric)
        if len(columns) > 1 and (phase, metric) not in primary and (known is None or known.higher_is_better is not None):
            for arm, row in _describe(measured, phase, metric, columns, protocol).items():
                found[arm].append(row)
    return {arm: tuple(rows) for arm, rows in found.items()}


def _describe(
    launches: Sequence[LaunchRecord], phase: str, metric: str, columns: tuple[str, ...], protocol: Protocol
) -> dict[str, HypothesisResult]:
    table = block_table(launches, phase, metric, columns)
    blocks = len(table.blocks)
    if blocks == 0 or not table.mask.any():
        return {}
    rules = Rules(protocol.alpha, len(columns) - 1, (blocks,), blocks, -1e-9, 1e-9, min_launches=2)
    one = look(table.values[None], table.mask[None], table.slots[None], protocol.alpha, rules)
    sign = 1 if is_higher_better(metric) else -1
    rows = {}
    for index, arm in enumerate(columns[1:]):
        if not np.isfinite(one.error[0, index]):
            continue
        estimate, *ends = (sign * 100 * float(np.expm1(min(float(x[0, index]), 50.0))) for x in (one.estimate, one.low, one.high))
        known = bool(np.isfinite(one.low[0, index]) and np.isfinite(one.high[0, index]))
        rows[arm] = HypothesisResult(
            phase=phase,
            metric=metric,
            verdict="UNRESOLVED",
            effect_pct=estimate,
            low_pct=min(ends) if known else None,
            high_pct=max(ends) if known else None,
            launches=int(table.mask[:, index + 1].sum()),
            baseline_launches=int(table.mask[:, 0].sum()),
            margin_pct=margin_of(metric, protocol),
            notes=("descriptive: not a primary hypothesis, no verdict",),
        )
    return rows
