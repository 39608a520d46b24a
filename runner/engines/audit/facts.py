"""What is known about the node and the arm while conditions of the engine's source are evaluated."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from runner.spec.base import Strict


class Facts(Strict):
    """The node, and the arguments of the arm (by their attribute name in the engine's arguments). What is not here is read from
    the source's own defaults, and what is not there either stays unknown: a condition is then reported with what it depends on."""

    capability: int = Field(description="compute capability x 10: 120 for SM120, 90 for SM90, 103 for SM103")
    world_size: int = 8
    link: str | None = Field(default=None, description="pcie or nvlink")
    arguments: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)

    @property
    def major_minor(self) -> tuple[int, int]:
        return self.capability // 10, self.capability % 10

    def names(self) -> dict[str, Any]:
        """Values of bare names and of attributes with these names, wherever they occur."""
        known: dict[str, Any] = {
            "world_size": self.world_size,
            "tp_size": self.world_size,
            "nnodes": 1,
            "is_multi_node": False,
            "device_capability_major": self.major_minor[0],
        }
        if self.link is not None:
            known["full_nvlink"] = self.link == "nvlink"
        return known

    def primitives(self) -> Mapping[str, Any]:
        """What the bottom of every predicate asks: torch and the driver. A call gives the value, too."""
        return {
            "torch.cuda.is_available": True,
            "torch.cuda.get_device_capability": self.major_minor,
            "torch.version.cuda": "13.0",
            "torch.version.hip": None,
            "torch.version.musa": None,
            "torch.version.xpu": None,
        }

    def fallbacks(self) -> Mapping[str, Any]:
        """Answers of functions whose body leads below Python (NVML), used only when their body cannot be evaluated."""
        return {
            "get_device_sm": self.capability,
            "get_device_capability": self.major_minor,
            "is_cuda": True,
            "is_cuda_alike": True,
            "is_flashinfer_available": True,
            "is_hip": False,
            "is_npu": False,
            "is_xpu": False,
            "is_musa": False,
            "is_cpu": False,
            "is_mps": False,
            "is_host_cpu_arm64": False,
        }
