"""Which engine serves, in which interpreter, with which deadlines."""

from typing import Any, Literal

from pydantic import Field, field_validator

from runner.spec.base import Strict

EngineKind = Literal["auto", "sglang", "container", "simulated", "attached"]


class Deadlines(Strict):
    """Seconds without progress before a start or a stop is given up; each stage of a start has its own."""

    bind_s: float = Field(default=120, gt=0, description="process start to the first log line of the engine")
    distributed_s: float = Field(default=300, gt=0)
    weights_s: float = Field(default=3600, gt=0)
    compile_s: float = Field(default=1800, gt=0, description="silent but compiling (compiler children or a growing cache)")
    graphs_s: float = Field(default=1800, gt=0)
    warmup_s: float = Field(default=900, gt=0)
    silent_s: float = Field(default=900, gt=0, description="no log line, no compile activity")
    drain_s: float = Field(default=5, gt=0, description="after abort, before SIGTERM counts as ignored")
    terminate_s: float = Field(default=15, gt=0, description="SIGTERM to SIGKILL of the group")
    memory_free_s: float = Field(default=60, gt=0)


class Simulation(Strict):
    """Switches of the simulated engine: its cost model, its noise and its faults. Never read by the code that judges."""

    load_s: float = Field(default=0.2, ge=0, description="simulated load time, s")
    time_scale: float = Field(default=1.0, gt=0, description="token times are multiplied by this (under 1: faster)")
    compute: dict[str, float] = Field(default_factory=dict, description="cost-model overrides, see engines/simulated/cost.py")
    effects: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="extra true effects: 'factor=level' -> metric -> percent"
    )
    launch_noise_pct: float = Field(default=0.3, ge=0)
    request_noise_pct: float = Field(default=1.0, ge=0)
    noise_shape: Literal["gaussian", "heavy", "bimodal", "drift"] = "gaussian"
    bimodal_gap_pct: float = 20.0
    drift_pct_per_launch: float = 0.0
    decode_noise_pct: dict[int, float] = Field(
        default_factory=dict,
        description="rows of a decode step -> launch-to-launch standard deviation, percent, on top of launch_noise_pct; the nearest row "
        "count (by ratio) answers for the others",
    )
    level_noise_pct: dict[str, float] = Field(
        default_factory=dict,
        description="'factor=level' -> launch-to-launch standard deviation of decode steps of arms with that level, percent, on top",
    )
    prefill_noise_pct: float = Field(default=0.0, ge=0, description="launch-to-launch standard deviation of prefill passes, percent")
    stage_share: dict[str, float] = Field(
        default_factory=dict,
        description="share of load_s by stage: bind (before the first line), distributed, weights, graphs, warmup; empty: the simulation's own",
    )
    cold_start_pct: float = Field(default=0.0, description="how much slower unseen shapes are at first")
    cold_stall_s: float = Field(
        default=0.0,
        ge=0,
        description="what the first prefill pass of an unseen size costs on top in a machine's first launch, s (compilation)",
    )
    first_launch_slower_pct: float = 0.0
    faults: tuple[dict[str, Any], ...] = Field(default=(), description="{kind, arm?, launch?, at?}, see engines/simulated/faults.py")
    seed: int = 1

    @field_validator("faults", mode="before")
    @classmethod
    def _the_word_nan(cls, faults: Any) -> Any:
        """On the command line `nan` is a number to Hydra's grammar; here it is the name of a fault."""
        if not isinstance(faults, (list, tuple)):
            return faults
        return [{**each, "kind": "nan"} if isinstance(each, dict) and each.get("kind") != each.get("kind") else each for each in faults]


class EngineSpec(Strict):
    """`python` is the interpreter of the engine's own environment; the runner never imports the engine."""

    kind: EngineKind = "auto"
    version: str | None = Field(default=None, description="asserted for plans without an installed engine; simulated: what it plays")
    python: str | None = None
    url: str | None = Field(default=None, description="attached: the server somebody else runs")
    image: str | None = Field(default=None, description="container: image reference")
    container_runtime: str = "docker"
    options: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    deadlines: Deadlines = Deadlines()
    simulation: Simulation = Simulation()
    extra_python_path: tuple[str, ...] = ()
    cache_root: str | None = Field(default=None, description="root of compile caches; default beside the node lock")
    port_range: tuple[int, int] = (21000, 21999)

    @field_validator("port_range")
    @classmethod
    def _ports(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 1024 <= value[0] <= value[1] <= 65535:
            raise ValueError("two port numbers from 1024 to 65535, the lower first, for example [21000, 21999]")
        return value
