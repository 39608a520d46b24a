"""What the evidence says of an arm: grades per factor over its launches, and whether it is another arm in disguise."""

from collections.abc import Mapping, Sequence

from runner.records.plan import Plan
from runner.records.schema import Evidence, LaunchRecord

_RANK = {"resolved": 0, "observed": 1, "contradicted": 2}


def arm_evidence(launches: Sequence[LaunchRecord], arm: str) -> tuple[Evidence, ...]:
    """The strongest word per factor over all launches of the arm that served: contradicted, then observed, then resolved."""
    best: dict[str, Evidence] = {}
    for launch in launches:
        if launch.arm != arm or launch.outcome not in ("ok", "invalid"):
            continue
        for item in launch.evidence:
            if item.factor not in best or _RANK[item.grade] > _RANK[best[item.factor].grade]:
                best[item.factor] = item
    return tuple(best.values())


def same_as(plan: Plan, arm: str, evidence: Sequence[Evidence]) -> str | None:
    """The arm that this one equals once its contradicted factors are back at the baseline's level; None where none does.

    Factors that exist only under a contradicted one (absent from the other arm) fall away with it."""
    levels = _levels(plan, arm)
    contradicted = {item.factor for item in evidence if item.grade == "contradicted"} & {
        factor for factor, level in levels.items() if plan.baseline_levels.get(factor) != level
    }
    if not contradicted:
        return None
    reset = {factor: plan.baseline_levels.get(factor, level) if factor in contradicted else level for factor, level in levels.items()}
    reset = {factor: level for factor, level in reset.items() if factor not in contradicted or factor in plan.baseline_levels}
    for cell in plan.cells:
        if cell.levels == reset and cell.arm is not None and cell.arm != arm:
            return cell.arm
    names = [plan.baseline, *(other.name for other in plan.arms if other.name != plan.baseline)]
    for name in names:
        other = _levels(plan, name)
        if name == arm or any(reset.get(factor) != level for factor, level in other.items()):
            continue
        # What the other arm does not have at all must hang on a contradicted factor.
        if set(reset) - set(other) <= _conditional(plan, contradicted):
            return name
    return None


def _levels(plan: Plan, name: str) -> Mapping[str, str]:
    if name == plan.baseline:
        return plan.baseline_levels
    return next((arm.levels for arm in plan.arms if arm.name == name), {})


def _conditional(plan: Plan, contradicted: set[str]) -> set[str]:
    """Factors that never occur in a cell where every contradicted factor is at the baseline's level."""
    everywhere = {factor for cell in plan.cells for factor in cell.levels} | {factor for arm in plan.arms for factor in arm.levels}
    cells = [cell.levels for cell in plan.cells] + [arm.levels for arm in plan.arms] + [plan.baseline_levels]
    without = [levels for levels in cells if all(levels.get(factor) == plan.baseline_levels.get(factor) for factor in contradicted)]
    return everywhere - {factor for levels in without for factor in levels}


def inert_arms(plan: Plan, launches: Sequence[LaunchRecord], override: Mapping[str, Sequence[Evidence]] | None = None) -> dict[str, str]:
    """INERT arm -> the arm it equals (chains followed to their end). Arms that never served are not INERT."""
    direct: dict[str, str] = {}
    for arm in plan.arms:
        if arm.name == plan.baseline or not any(r.arm == arm.name and r.outcome in ("ok", "invalid") for r in launches):
            continue
        evidence = (override or {}).get(arm.name) or arm_evidence(launches, arm.name)
        other = same_as(plan, arm.name, evidence)
        if other is not None:
            direct[arm.name] = other
    final = {}
    for name in direct:
        other, seen = direct[name], {name}
        while other in direct and other not in seen:
            seen.add(other)
            other = direct[other]
        final[name] = other
    return final
