"""How much is measured, when to stop, and what makes a measurement invalid. Fixed before the first launch."""

from typing import Literal

from pydantic import Field

from runner.spec.base import Strict


class Margins(Strict):
    """Smallest relative differences that matter, percent."""

    tpot_pct: float = Field(default=1.0, gt=0)
    throughput_pct: float = Field(default=3.0, gt=0)
    ttft_pct: float = Field(default=5.0, gt=0)


class Primary(Strict):
    """One primary hypothesis pattern: a metric in the phases named (or of a kind)."""

    metric: str
    phases: tuple[str, ...] = ()
    kind: Literal["decode", "prefill", "mixed"] | None = None


class Limits(Strict):
    """A phase of a launch beyond any of these is INVALID; blind to the outcome."""

    failed_share: float = 0.01
    cached_share: float = 0.05
    dispatch_lag_p99_ms: float = 20.0
    loop_stall_ms: float = 100.0
    client_cpu_share: float = 0.9
    rate_error: float = 0.02
    littles_law_residual: float = 0.15


class Protocol(Strict):
    """The measuring plan of a study. `alpha` is the family-wise error over primary hypotheses x arms."""

    name: str = "default"
    min_blocks: int = Field(default=3, ge=1)
    max_blocks: int = Field(default=8, ge=1)
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    margins: Margins = Margins()
    primary: tuple[Primary, ...] = (Primary(metric="tpot_p50_ms", kind="decode"), Primary(metric="ttft_p50_ms", kind="prefill"))
    required: tuple[str, ...] = Field(default=(), description="arms whose failure ends with exit code 3, besides the baseline")
    gpu_minutes: float | None = Field(default=None, gt=0, description="budget of the study")
    prime: bool = Field(default=True, description="one unmeasured launch an arm first, to fill compile caches (never simulated)")
    smoke: bool = Field(default=True, description="real engines: an unmeasured first launch shows that the baseline serves at all")
    screen: bool = Field(default=False, description="start each arm once with few layers and random weights first")
    leave_out: bool = Field(
        default=True, description="communication arms that a bound measured on this node keeps below every margin are not launched"
    )
    trust_rules: bool = Field(
        default=True, description="false: what only a rule refuses is launched all the same, so that the engine itself says it"
    )
    aa_arm: Literal["never", "without_noise_floor"] = Field(
        default="never", description="real engines: the first min_blocks blocks carry the baseline twice while the node has no noise floor"
    )
    confirm: bool = Field(default=True, description="confirm the recommended arm in fresh blocks")
    confirm_blocks: int = Field(default=2, ge=1)
    phase_scale: float = Field(default=1.0, gt=0, description="multiplies seconds and warm-up budgets of phases")
    warmup_output: int | None = Field(default=None, ge=1, description="output tokens of warm-up requests; null: as measured")
    limits: Limits = Limits()
    fingerprint_prompts: int = Field(default=4, ge=0)
    fingerprint_tokens: int = Field(default=16, ge=1)
    profile: bool = False
    retries: int = Field(default=1, ge=0)
    soak_temperature_c: tuple[float, float] | None = Field(
        default=None, description="before a launch's load every GPU is brought into this band by waiting or by an unmeasured load"
    )
    soak_clock_mhz: tuple[float, float] | None = Field(default=None, description="the same for the SM clock")
    soak_deadline_s: float = Field(default=120, gt=0, description="after this the load begins all the same; the record says so")
    seed: int = 20261
    ask_above_gpu_hours: float = 8.0
