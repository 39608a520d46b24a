"""Launches that did not serve: how often an arm starts, and when it is given up."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betaincinv

from runner.records.schema import Failure, LaunchRecord
from runner.spec.protocol import Protocol

STARTING = ("measure", "noise", "confirm", "prime", "screen", "smoke")
AGAIN = ("once", "at_once", "after_cleanup")


@dataclass(frozen=True)
class Starts:
    """Launches that served or did not. `low`, `high`: exact 95 % interval of the success rate (Clopper and Pearson 1934)."""

    served: int
    failed: int
    rejected: int
    last_failure: Failure | None

    @property
    def rate(self) -> float | None:
        total = self.served + self.failed
        return self.served / total if total else None

    def interval(self, level: float = 0.95) -> tuple[float | None, float | None]:
        total, tail = self.served + self.failed, (1 - level) / 2
        if not total:
            return None, None
        low = 0.0 if self.served == 0 else float(betaincinv(self.served, self.failed + 1, tail))
        high = 1.0 if self.failed == 0 else float(betaincinv(self.served + 1, self.failed, 1 - tail))
        return low, high


def starts(launches: Sequence[LaunchRecord], arm: str) -> Starts:
    """Counts an arm's launches of every purpose. Interrupted launches (the study was stopped) count for nothing."""
    own = [launch for launch in launches if launch.arm == arm and launch.purpose in STARTING]
    failures = [launch.failure for launch in own if launch.failure is not None and launch.outcome in ("failed", "rejected")]
    return Starts(
        served=sum(launch.outcome in ("ok", "invalid") for launch in own),
        failed=sum(launch.outcome == "failed" for launch in own),
        rejected=sum(launch.outcome == "rejected" for launch in own),
        last_failure=failures[-1] if failures else None,
    )


def given_up(launches: Sequence[LaunchRecord], arm: str, protocol: Protocol) -> str | None:
    """Why an arm is launched no more; None while it may be. Refused: at once. Failed: when the failure is not worth repeating,
    when its retries in a row are used up without any launch that served, or when it failed more than twice as often as allowed."""
    own = [launch for launch in launches if launch.arm == arm and launch.purpose in STARTING and launch.outcome != "interrupted"]
    state = starts(own, arm)
    kind = state.last_failure.kind if state.last_failure is not None else "unknown"
    if state.rejected:
        return f"rejected: {kind}"
    if not state.failed:
        return None
    last = own[-1]
    if last.outcome == "failed" and (last.failure is None or last.failure.retry not in AGAIN):
        return f"failed: {kind}"
    if not state.served and state.failed > protocol.retries:
        return f"failed: {kind}, {state.failed} times"
    if state.failed > 2 * protocol.retries + 1:
        return f"failed: {kind}, {state.failed} of {state.failed + state.served} launches"
    return None
