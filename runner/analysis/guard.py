"""Which arms changed what the model says: the output guard, applied to the fingerprints in the records."""

from collections.abc import Callable, Sequence
from typing import Any

from runner.records.plan import Plan
from runner.records.schema import Fingerprint, LaunchRecord

Guard = Callable[[Sequence[Fingerprint], Sequence[Fingerprint]], Any]


def broken_arms(plan: Plan, launches: Sequence[LaunchRecord], guard: Guard | None = None) -> dict[str, str]:
    """BROKEN arm -> why. Arms without fingerprints, or a baseline without, cannot be told apart and are not BROKEN."""
    if guard is None:
        try:
            from runner.analysis.outputs import compare
        except ImportError:
            return {}
        guard = compare
    baseline = _prints(launches, plan.baseline)
    found: dict[str, str] = {}
    if not baseline:
        return found
    for arm in plan.arms:
        own = _prints(launches, arm.name)
        if arm.name == plan.baseline or not own:
            continue
        result = guard(own, baseline)
        if result.broken:
            found[arm.name] = result.reason
    return found


def _prints(launches: Sequence[LaunchRecord], arm: str) -> list[Fingerprint]:
    return [launch.fingerprint for launch in launches if launch.arm == arm and launch.fingerprint is not None and launch.outcome == "ok"]
