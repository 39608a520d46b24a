"""Which arms changed what the model says: the output guard, applied to the fingerprints in the records."""

from collections.abc import Callable, Sequence
from typing import Protocol

from runner.records.plan import Plan
from runner.records.schema import Fingerprint, LaunchRecord


class Guarded(Protocol):
    """What a guard answers: `state` is pass, broken or cannot_tell."""

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...


Guard = Callable[[Sequence[Fingerprint], Sequence[Fingerprint]], Guarded]


def guarded_arms(plan: Plan, launches: Sequence[LaunchRecord], guard: Guard | None = None) -> dict[str, Guarded]:
    """Arm -> the guard's answer, for arms with fingerprints; nothing where the baseline has none. `guard` defaults to
    `runner.analysis.outputs.compare`."""
    if guard is None:
        from runner.analysis.outputs import compare

        guard = compare
    baseline = _prints(launches, plan.baseline)
    if not baseline:
        return {}
    prints = {arm.name: _prints(launches, arm.name) for arm in plan.arms if arm.name != plan.baseline}
    return {name: guard(own, baseline) for name, own in prints.items() if own}


def _prints(launches: Sequence[LaunchRecord], arm: str) -> list[Fingerprint]:
    taken = [launch.fingerprint for launch in launches if launch.arm == arm and launch.outcome == "ok" and launch.purpose != "screen"]
    return [print_ for print_ in taken if print_ is not None and print_.state != "not_taken"]
