"""The node: one machine and its GPUs, as the user describes it (probing fills in what is left null)."""

from typing import Literal

from pydantic import Field

from runner.spec.base import Strict


class LinkCost(Strict):
    """alpha + beta * bytes for one all-reduce algorithm: `alpha_us` in microseconds, `gb_s` in 1e9 bytes a second (bus)."""

    alpha_us: float = Field(ge=0)
    gb_s: float = Field(gt=0)
    source: str = ""


class NodeSpec(Strict):
    """One machine. `capability` is CUDA compute capability times ten (SM120 is 120, SM90 is 90)."""

    name: str
    gpus: int = Field(ge=0)
    machines: int = Field(default=1, ge=1, description="machines that one server spans; `gpus` counts all of them (tp 16 over two: 16, 2)")
    gpu_model: str
    capability: int = Field(ge=0)
    memory_gb: float = Field(ge=0, description="memory of one GPU, GB")
    link: Literal["pcie", "nvlink", "none"]
    link_gb_s: float = Field(gt=0, description="bandwidth of one GPU's link in one direction, GB/s")
    numa_nodes: int = Field(default=1, ge=1)
    all_reduce: dict[str, LinkCost] = Field(default_factory=dict, description="algorithm -> measured or published cost")
    env: dict[str, str] = Field(default_factory=dict, description="variables every engine process on this node gets")
    hosts: tuple[str, ...] = ()
