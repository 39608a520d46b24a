"""From plan and launches to the decision. Pure: no files, no clock; the same records give the same words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtr

from runner.analysis import aa
from runner.analysis.confirmation import Confirmation, confirmation
from runner.analysis.effects import effects
from runner.analysis.failures import Starts, starts
from runner.analysis.guard import Guard, Guarded, guarded_arms
from runner.analysis.hypotheses import Group, groups
from runner.analysis.inert import arm_evidence, inert_arms
from runner.analysis.noise import NoiseEntry, NoiseFloor
from runner.analysis.observations import MEASURING, block_numbers
from runner.analysis.order_effects import order_effects
from runner.analysis.ranking import arm_verdict, candidates
from runner.analysis.recommend import Facts, recommend
from runner.analysis.results import MIN_LAUNCHES, descriptive, hypothesis_result, phase_values
from runner.records import words
from runner.records.decision import ArmResult, ArmStatus, CellResult, Decision, HypothesisResult, Spread
from runner.records.plan import Arm, Plan
from runner.records.schema import Evidence, LaunchRecord
from runner.spec.protocol import Protocol

QUIETER = 0.01  # a study is told to be quieter than its floor at this one-sided level of the F test


def judge(
    plan: Plan,
    launches: Sequence[LaunchRecord],
    protocol: Protocol,
    *,
    noise: NoiseFloor | None = None,
    complete: bool = True,
    looks: Sequence[int] | None = None,
    guard: Guard | None = None,
    evidence_override: Mapping[str, Sequence[Evidence]] | None = None,
) -> Decision:
    """`looks`: block counts at which the data were looked at; default every count from min_blocks on, as `next_block` does.
    `(n,)` with n the number of blocks is one look that spends the whole alpha. `guard` compares output fingerprints (default:
    `runner.analysis.outputs.compare`). `evidence_override`: arm -> evidence that replaces what its launches recorded."""
    launches = [launch for launch in launches if launch.outcome != "interrupted"]
    inert = inert_arms(plan, launches, evidence_override)
    states = groups(plan, launches, protocol, noise, looks=looks, left_out=frozenset(inert))
    outputs = guarded_arms(plan, launches, guard)
    context = _Context(plan, launches, protocol, states, inert, outputs, evidence_override or {}, descriptive(states, launches, protocol))
    arms = tuple(_arm(context, arm) for arm in _all_arms(plan))
    best = candidates(states, plan, launches, frozenset(name for name, answer in outputs.items() if answer.state == "broken"))
    confirmed = confirmation(plan, launches, states, best[0][0]) if best else Confirmation()
    engine = _engine(plan, launches)
    found_effects = effects(plan, launches, protocol, {arm.name for arm in arms if arm.status in ("BASELINE", "MEASURED")})
    spread = aa.spreads(plan, launches, protocol) if aa.is_aa(plan) else ()
    facts = Facts(plan, protocol, arms, states, best, confirmed, launches, noise is not None, complete, tuple(found_effects))
    return Decision(
        study=plan.study,
        question=plan.question,
        engine=engine,
        node=plan.node,
        model=plan.model,
        baseline=plan.baseline,
        gpu_minutes=round(sum(launch.gpu_seconds for launch in launches) / 60, 3),
        recommendation=aa.answer(plan, spread, complete) if spread else recommend(facts),
        arms=arms,
        cells=_cells(plan, arms),
        effects=tuple(found_effects),
        noise=_noise(states, noise),
        spread=spread,
        order_effects=order_effects(launches, sorted({(item.phase, item.metric) for item in plan.hypotheses})),
        method=_method(plan, protocol, states, looks, noise, launches),
        complete=complete,
        warnings=(*_warnings(states, noise, spread, arms, plan), *aa.warnings(spread)),
    )


@dataclass(frozen=True)
class _Context:
    plan: Plan
    launches: Sequence[LaunchRecord]
    protocol: Protocol
    states: Sequence[Group]
    inert: Mapping[str, str]
    outputs: Mapping[str, Guarded]
    evidence: Mapping[str, Sequence[Evidence]]
    descriptive: Mapping[str, tuple[HypothesisResult, ...]]


def _all_arms(plan: Plan) -> list[Arm]:
    listed = list(plan.arms)
    if all(arm.name != plan.baseline for arm in listed):
        listed.insert(0, Arm(name=plan.baseline, levels=plan.baseline_levels))
    return listed


def _arm(context: _Context, arm: Arm) -> ArmResult:
    plan, launches = context.plan, context.launches
    own = [launch for launch in launches if launch.arm == arm.name and launch.purpose in MEASURING]
    state = starts(launches, arm.name)
    low, high = state.interval()
    evidence = tuple(context.evidence.get(arm.name) or arm_evidence(launches, arm.name))
    results = tuple(hypothesis_result(group, arm.name, launches) for group in context.states if arm.name in group.arms)
    status, reason = _status(context, arm.name, state, own, any(result.launches >= MIN_LAUNCHES for result in results))
    failure = state.last_failure
    judged = status == "MEASURED" and bool(results)
    notes = list(arm.notes)
    if state.failed > 1:
        notes.append(f"failed {state.failed} times of {state.failed + state.served}: not recommended")
    answer = context.outputs.get(arm.name)
    if answer is not None and answer.state == "cannot_tell":
        notes.append(f"outputs: cannot tell whether they are unchanged: {answer.reason}")
    notes.extend(sorted({f"not comparable: {text}" for launch in own for text in launch.unfair}))
    return ArmResult(
        name=arm.name,
        levels=arm.levels,
        status=status,
        verdict=arm_verdict([result.verdict for result in results]) if judged else None,
        launches=sum(launch.outcome == "ok" for launch in own),
        failed_launches=state.failed,
        start_success=state.rate,
        start_success_low=low,
        start_success_high=high,
        evidence=evidence,
        # What the engine refused was never a question for the numbers.
        hypotheses=results if status != "REJECTED" else (),
        descriptive=context.descriptive.get(arm.name, ()) if judged else (),
        values=phase_values(own),
        same_as=context.inert.get(arm.name),
        failure_class=failure.kind if failure is not None and status in ("FAILED", "REJECTED") else None,
        reason=reason,
        attributed=_attributed(plan, arm, evidence),
        notes=tuple(notes),
    )


def _status(context: _Context, name: str, state: Starts, own: Sequence[LaunchRecord], enough: bool) -> tuple[ArmStatus, str]:
    failure = state.last_failure
    said = f"{failure.kind}: {failure.line or failure.cause}".rstrip(": ") if failure is not None else ""
    if state.rejected and not state.served:
        return "REJECTED", said or "refused at start"
    if state.failed and (not state.served or (state.failed > 1 and not enough and name != context.plan.baseline)):
        return "FAILED", said or "did not serve"
    if name == context.plan.baseline:
        return "BASELINE", ""
    if name in context.inert:
        return "INERT", f"same as {context.inert[name]}"
    answer = context.outputs.get(name)
    if answer is not None and answer.state == "broken":
        return "BROKEN", answer.reason
    if not own:
        return "INVALID", words.NOT_MEASURED
    if not enough and any(name in group.arms for group in context.states):
        return "INVALID", _why_not_enough(context, own)
    return "MEASURED", ""


def _why_not_enough(context: _Context, own: Sequence[LaunchRecord]) -> str:
    primary = {(group.phase) for group in context.states}
    reasons = sorted({why for launch in own for phase in launch.phases if phase.phase in primary for why in phase.invalid_reasons})
    counted = sum(launch.outcome == "ok" for launch in own)
    text = f"no primary hypothesis has {MIN_LAUNCHES} valid launches ({counted} launches ended well)"
    return f"{text}: {'; '.join(reasons)}" if reasons else text


def _attributed(plan: Plan, arm: Arm, evidence: Sequence[Evidence]) -> bool:
    """True when every factor that differs from the baseline was observed in force."""
    grades = {item.factor: item.grade for item in evidence}
    changed = [factor for factor, level in arm.levels.items() if plan.baseline_levels.get(factor) != level]
    return all(grades.get(factor) == "observed" for factor in changed)


def _cells(plan: Plan, arms: Sequence[ArmResult]) -> tuple[CellResult, ...]:
    """The plan's cells; those of an arm that was refused at start become REJECTED with the engine's sentence."""
    by_name = {arm.name: arm for arm in arms}
    results = []
    for cell in plan.cells:
        arm = by_name.get(cell.arm) if cell.arm is not None else None
        if cell.status == "REJECTED" or arm is None:
            results.append(CellResult(**cell.model_dump()))
        elif arm.status == "REJECTED":
            results.append(
                CellResult(
                    levels=cell.levels,
                    status="REJECTED",
                    arm=arm.name,
                    reason=arm.reason,
                    refused_at="start",
                    sentence=_sentence(arm.reason),
                )
            )
        elif cell.status == "DUPLICATE":
            results.append(CellResult(**cell.model_dump()))
        else:
            results.append(CellResult(levels=cell.levels, status=arm.status, arm=arm.name, reason=cell.reason or arm.reason))
    return tuple(results)


def _sentence(reason: str) -> str:
    return reason.split(": ", 1)[1] if ": " in reason else reason


def _engine(plan: Plan, launches: Sequence[LaunchRecord]) -> dict[str, Any]:
    first = launches[0].engine if launches else None
    simulated = plan.simulated or any(launch.engine.simulated for launch in launches)
    builds = sorted({launch.engine.build for launch in launches})
    return {
        "kind": first.kind if first is not None else plan.engine_kind,
        "version": first.version if first is not None else plan.engine_version,
        "simulated": simulated,
        "builds": builds,
    }


def _noise(states: Sequence[Group], noise: NoiseFloor | None) -> dict[str, Any]:
    rows = []
    for group in states:
        last = group.result.last if group.result is not None else None
        entry = noise.entry(group.phase, group.metric) if noise is not None else None
        rows.append(
            {
                "phase": group.phase,
                "metric": group.metric,
                "launch_sd_pct": _finite(100 * _middle(last.launch_sd)) if last is not None else None,
                "floor_sd_pct": entry.between_pct if entry is not None else None,
                "modes": 2 if group.mode_gap > 0 else 1,
                "mode_gap_pct": round(100 * float(np.expm1(group.mode_gap)), 3),
                "drift_pct_per_position": _finite(100 * float(last.fit.slope[0])) if last is not None else None,
            }
        )
    return {"floor": noise is not None, "floor_launches": noise.launches if noise is not None else 0, "rows": rows}


def _middle(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Median of what is known; NaN where nothing is."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if known.size else float("nan")


def _finite(value: float) -> float | None:
    return round(value, 5) if np.isfinite(value) else None


def _method(
    plan: Plan,
    protocol: Protocol,
    states: Sequence[Group],
    looks: Sequence[int] | None,
    noise: NoiseFloor | None,
    launches: Sequence[LaunchRecord],
) -> dict[str, Any]:
    return {
        "unit": "launch",
        "comparison": "log ratio to the baseline of the same block (arm + fixed block effects, slope over positions where the design "
        "allows); a block without baseline informs through its other arms",
        "intervals": "simultaneous over arms (Dunnett), metrics and phases (Sidak), looks (Lan-DeMets, Pocock-type)",
        "same": "interval inside the margin (two one-sided tests)",
        "variance": "pooled over arms (clearly noisier ones apart), moderated by the node's noise floor"
        if noise is not None
        else "pooled over arms (clearly noisier ones apart); no noise floor",
        "alpha": protocol.alpha,
        "families": len(states),
        "blocks": len(block_numbers(launches)),
        "looks": list(looks) if looks else list(states[0].rules.looks if states else ()),
        "nominal_levels": list(states[0].rules.levels()) if states and states[0].result is not None else [],
        "seed": plan.seed,
    }


def _floor_of_a_worse_day(group: Group, entry: NoiseEntry) -> list[str]:
    """No study is taken to be much quieter than its floor, so a floor that saw a cold first launch or a bad day widens intervals."""
    fit = group.result.last.fit if group.result is not None else None
    if fit is None or not fit.df[0] > 0 or not (entry.df > 0 and entry.between_pct > 0):
        return []
    own = 100 * float(np.sqrt(fit.rss[0] / fit.df[0]))
    if fdtr(fit.df[0], entry.df, (own / entry.between_pct) ** 2) >= QUIETER:
        return []
    return [
        f"{group.phase} {group.metric}: launches of this study lie {own:.2g} % apart where the node's noise floor says {entry.between_pct:.2g} %, "
        "which widens the intervals; measure the floor again (experiment=noise_floor) before the next study"
    ]


def _warnings(
    states: Sequence[Group], noise: NoiseFloor | None, spread: Sequence[Spread], arms: Sequence[ArmResult], plan: Plan
) -> tuple[str, ...]:
    found = []
    if plan.simulated:
        found.append("SIMULATED: these numbers come from a cost model, not from an engine")
    if noise is None and not spread:
        found.append("this node has no noise floor (experiment=noise_floor): variances come from this study alone")
    for group in states:
        if group.mode_gap > 0:
            gap = 100 * float(np.expm1(group.mode_gap))
            found.append(f"{group.phase} {group.metric}: bimodal, two speeds {gap:.1f} % apart; no verdict inside that distance")
        if group.result is not None and bool(group.result.last.dropped_first[0]):
            found.append(f"{group.phase} {group.metric}: the study's first launch is an outlier and is not counted")
        if noise is not None and (entry := noise.entry(group.phase, group.metric)) is not None:
            found += _floor_of_a_worse_day(group, entry)
    for arm in arms:
        if arm.status == "MEASURED" and not arm.attributed and arm.verdict in ("BETTER", "WORSE", "MIXED"):
            found.append(f"{arm.name}: {arm.verdict}, but not every factor was observed in force, so it is not called the flag's doing")
    return tuple(found)
