"""Nights of one node: what was watched, what moved, and `nightly.json`, the outcome of one night. Schema version 1."""

from typing import Any, Literal

from pydantic import Field

from runner.spec.base import Strict

ALARMS = ("regression", "failed", "busy", "unfinished")

NightOutcome = Literal["learning", "quiet", "regression", "improvement", "failed"]


class Quantity(Strict):
    """One thing that is watched."""

    arm: str
    phase: str
    metric: str


class Night(Strict):
    """One night of one node. `values`: quantity key `arm|phase|metric` -> values of its valid launches, in the metric's unit."""

    study: str
    at: float = Field(description="Unix seconds of the first launch")
    identity: dict[str, str] = Field(default_factory=dict, description="engine version and build, driver, model, node, patches, clocks")
    values: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    outcome: NightOutcome = "quiet"
    accepted: bool = Field(default=False, description="the baseline begins with this night")


class Shift(Strict):
    """Tonight against the accepted nights. `change_pct` > 0 is an improvement."""

    quantity: Quantity
    change_pct: float
    low_pct: float
    high_pct: float
    p_value: float
    nights: int
    launches: int
    verdict: Literal["REGRESSION", "IMPROVEMENT", "quiet"]


class Observed(Strict):
    """How the node felt under the night's load: medians over phases; null where nothing tells."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


class NightReport(Strict):
    """`nightly.json` in the study's folder, and `night` in its decision.json."""

    schema_version: int = Field(default=1, alias="schema")
    study: str
    node: str
    simulated: bool
    at: float
    outcome: str = Field(description="learning, quiet, regression, improvement, failed, busy or unfinished")
    sentence: str
    changed: dict[str, tuple[str, str]] = Field(default_factory=dict, description="what differs from the last baseline night")
    shifts: tuple[Shift, ...] = ()
    suspects: tuple[str, ...] = ()
    missing: tuple[str, ...] = Field(default=(), description="arms that served on baseline nights and did not tonight")
    relaunched: tuple[str, ...] = Field(default=(), description="arms launched again tonight before anyone was told")
    first_look: str = Field(default="", description="the outcome before the suspects were launched again; '' where nothing was suspect")
    baseline_nights: tuple[str, ...] = ()
    observed: Observed = Observed()
    history: tuple[dict[str, Any], ...] = Field(
        default=(), description="newest nights: study, at, outcome, accepted, means by quantity key"
    )

    @property
    def alarm(self) -> bool:
        return self.outcome in ALARMS

    @property
    def subject(self) -> str:
        """One line for a mail or a chat."""
        mark = "SIMULATED " if self.simulated else ""
        return f"{mark}{self.outcome.upper() if self.alarm else self.outcome}: {self.study} on {self.node}"

    def of(self, arm: str) -> tuple[Shift, ...]:
        """What is known of one arm tonight."""
        return tuple(shift for shift in self.shifts if shift.quantity.arm == arm)


def key(quantity: Quantity) -> str:
    return f"{quantity.arm}|{quantity.phase}|{quantity.metric}"
