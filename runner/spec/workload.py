"""Load: what is sent, how it arrives, and when it is good enough."""

from typing import Literal

from pydantic import Field, model_validator

from runner.spec.base import Strict


class Lengths(Strict):
    """Token counts: fixed (`value`), uniform (`low`..`high`), lognormal (`mean`, `sigma` of the log) clipped to low..high."""

    kind: Literal["fixed", "uniform", "lognormal"] = "fixed"
    value: int = Field(default=256, gt=0)
    low: int = Field(default=1, gt=0)
    high: int = Field(default=32768, gt=0)
    sigma: float = Field(default=0.5, gt=0)


class Slo(Strict):
    """Limits a request must meet to count as good; null means no limit. Milliseconds."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class PhaseSpec(Strict):
    """One load level inside a launch. In a file `rate` or `concurrency` may be a list: that many phases (`spec/sweeps.py`)."""

    kind: Literal["decode", "prefill", "mixed"] = "decode"
    arrival: Literal["closed", "poisson", "gamma", "trace"] = "closed"
    concurrency: int = Field(default=1, ge=1, description="closed loop: streams; open loop: upper limit of open streams")
    rate: float | None = Field(default=None, gt=0, description="open loop, requests a second")
    burstiness: float = Field(default=1.0, gt=0, description="gamma arrivals: shape; 1 is Poisson, under 1 is bursty")
    input: Lengths = Lengths()
    output: Lengths = Lengths(value=128)
    requests: int | None = Field(default=None, ge=1, description="how many are sent; null: from min_rounds and seconds")
    seconds: float = Field(default=10.0, gt=0, description="target length of the measured window")
    shared_prefix: int = Field(default=0, ge=0, description="tokens every prompt of a group shares")
    prefix_groups: int = Field(default=1, ge=1)
    dataset: Literal["random_ids", "text", "trace"] = "random_ids"
    dataset_path: str | None = None
    route: Literal["generate", "completions", "chat"] = "generate"
    slo: Slo | None = None
    warmup_seconds: float = Field(default=10.0, ge=0, description="budget of the warm-up at this shape")

    @model_validator(mode="after")
    def _rate_for_open_loop(self) -> "PhaseSpec":
        if self.arrival in ("poisson", "gamma") and self.rate is None:
            raise ValueError(f"arrival={self.arrival} needs a rate (requests a second)")
        return self


class WorkloadSpec(Strict):
    """A named set of phases; an experiment picks some by name."""

    name: str
    phases: dict[str, PhaseSpec]
    seed: int = 7
    slo: Slo = Slo()
    guard_tasks: str | None = Field(default=None, description="JSONL of scored tasks for the output guard")
