"""`decision.json`: what the study says, documented and versioned. Keys are a contract for scripts."""

from typing import Any, Literal

from pydantic import Field

from runner.records.night import NightReport
from runner.records.schema import Evidence, RefusedAt
from runner.spec.base import Strict

Verdict = Literal["BETTER", "WORSE", "SAME", "UNRESOLVED"]
ArmVerdict = Literal["BETTER", "WORSE", "MIXED", "SAME", "UNRESOLVED"]
ArmStatus = Literal["BASELINE", "MEASURED", "FAILED", "INERT", "BROKEN", "INVALID", "REJECTED"]


class HypothesisResult(Strict):
    """One verdict. `effect_pct` > 0 is an improvement for every metric; low/high is the simultaneous interval.

    `effect_adjusted_pct` corrects for early stopping; `could_see_pct` is the effect this study could have seen."""

    phase: str
    metric: str
    verdict: Verdict
    effect_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    effect_adjusted_pct: float | None = None
    launches: int = 0
    baseline_launches: int = 0
    margin_pct: float = 0.0
    could_see_pct: float | None = None
    p_value: float | None = None
    notes: tuple[str, ...] = ()


class ArmResult(Strict):
    name: str
    levels: dict[str, str]
    status: ArmStatus
    verdict: ArmVerdict | None = None
    launches: int = 0
    failed_launches: int = 0
    start_success: float | None = None
    start_success_low: float | None = None
    start_success_high: float | None = None
    evidence: tuple[Evidence, ...] = ()
    hypotheses: tuple[HypothesisResult, ...] = ()
    descriptive: tuple[HypothesisResult, ...] = ()
    values: dict[str, dict[str, float]] = Field(default_factory=dict, description="phase -> metric -> geometric mean over valid launches")
    same_as: str | None = None
    failure_class: str | None = None
    reason: str = ""
    attributed: bool = Field(default=True, description="false where a factor is only resolved: the verdict is not called the flag's doing")
    notes: tuple[str, ...] = ()
    night: str = Field(
        default="",
        description="a night's word for the arm, against the accepted nights: learning, quiet, REGRESSION, IMPROVEMENT; else ''",
    )


class CellResult(Strict):
    levels: dict[str, str]
    status: str
    arm: str | None = None
    reason: str = ""
    refused_at: RefusedAt | None = None
    sentence: str = ""


class Effect(Strict):
    """A main effect or a two-factor interaction over feasible arms, percent, positive is an improvement."""

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    phase: str
    metric: str
    effect_pct: float
    low_pct: float
    high_pct: float
    aliases: tuple[str, ...] = ()
    exploratory: bool = False


class Spread(Strict):
    """Of an A/A study: how far launches of one configuration lie apart, for one (phase, metric). Percent.

    `sd_pct` is the standard deviation between launches of one block about a straight drift, low/high its 90 % interval (chi-square; null with
    too few launches); `resolves_pct`: blocks -> smallest effect of one arm found with probability 0.8 (two-sided 5 %, one look);
    `drift_pct` is per launch; `blocks_pct` the standard deviation of block means (each block has its own prompts; not in `sd_pct`), with
    the p-value of there being none beyond the launches' own."""

    phase: str
    metric: str
    launches: int
    mean: float
    sd_pct: float
    low_pct: float | None = None
    high_pct: float | None = None
    resolves_pct: dict[int, float] = Field(default_factory=dict)
    drift_pct: float = 0.0
    drift_p: float = 1.0
    blocks_pct: float = 0.0
    blocks_p: float = 1.0
    modes: int = 1
    mode_gap_pct: float = 0.0


class Recommendation(Strict):
    arm: str | None
    confirmed: bool = False
    sentence: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    proved: tuple[str, ...] = ()
    not_proved: tuple[str, ...] = ()
    not_testable: tuple[str, ...] = ()
    next_experiment: str = ""


class Decision(Strict):
    schema_version: int = Field(default=1, alias="schema")
    study: str
    question: str = ""
    engine: dict[str, Any] = Field(description="kind, version, simulated")
    node: str
    model: str = ""
    baseline: str
    gpu_minutes: float
    recommendation: Recommendation
    arms: tuple[ArmResult, ...]
    cells: tuple[CellResult, ...]
    effects: tuple[Effect, ...] = ()
    noise: dict[str, Any] = Field(default_factory=dict)
    spread: tuple[Spread, ...] = Field(default=(), description="an A/A study's answer; empty for every other study")
    order_effects: dict[str, Any] = Field(default_factory=dict)
    method: dict[str, Any] = Field(default_factory=dict)
    complete: bool = True
    warnings: tuple[str, ...] = ()
    night: NightReport | None = Field(default=None, description="a nightly study's own verdict, over the node's history")
