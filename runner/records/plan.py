"""The plan: cells as written, arms as launched, blocks as ordered. What `plan.json` holds."""

from typing import Any, Literal

from pydantic import Field

from runner.records.schema import RefusedAt
from runner.spec.base import Strict


class Cell(Strict):
    """One combination of levels as written. A conditional factor that does not apply to the cell is absent from `levels`."""

    levels: dict[str, str]
    status: Literal["ARM", "REJECTED", "DUPLICATE"]
    arm: str | None = None
    reason: str = ""
    refused_at: RefusedAt | None = None
    sentence: str = Field(default="", description="the engine's own words, whenever there are some")


class Arm(Strict):
    """Cells whose resolved configuration is the same: what is launched and judged.

    `options` and `env` are everything the launch gets beyond host, port and paths, baseline's pins included."""

    name: str
    levels: dict[str, str]
    options: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = ()
    configuration_hash: str = ""
    resolved: dict[str, Any] = Field(default_factory=dict)
    resolved_by: Literal["rules", "engine"] = "rules"
    notes: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()


class Hypothesis(Strict):
    """(arm, phase, metric) against the baseline."""

    arm: str
    phase: str
    metric: str


class Estimate(Strict):
    """GPU minutes and wall minutes with an interval; `launch_*` in seconds, and where the figures come from."""

    estimate: float
    low: float
    high: float
    wall_minutes: float = 0.0
    launches: int = 0
    launch_cold_s: float = 0.0
    launch_warm_s: float = 0.0
    source: str = "defaults"


class Plan(Strict):
    """Everything decided before a GPU second is spent."""

    schema_version: int = Field(default=1, alias="schema")
    study: str
    experiment: str
    question: str = ""
    engine_kind: Literal["sglang", "container", "simulated", "attached"]
    engine_version: str
    simulated: bool
    node: str
    model: str
    baseline: str
    baseline_levels: dict[str, str]
    factors: tuple[str, ...]
    raw_cells: int
    cells: tuple[Cell, ...]
    arms: tuple[Arm, ...]
    phases: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    blocks: tuple[tuple[str, ...], ...] = Field(
        description="arm names in launch order, one row a block; rows beyond min_blocks are used while something is open"
    )
    estimate: Estimate
    not_resolvable: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    identity: dict[str, str] = Field(
        default_factory=dict, description="what must not change when the study is resumed: hashes and versions"
    )

    def arm(self, name: str) -> Arm:
        """Raises KeyError."""
        return next(arm for arm in self.arms if arm.name == name)
