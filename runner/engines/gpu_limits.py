"""What somebody has set on the GPUs and what they could do at most: limits, persistence, PCIe. Units: W, MHz, lanes."""

from dataclasses import dataclass
from typing import Any

from runner.engines.gpus import _load_nvml


@dataclass(frozen=True)
class GpuLimits:
    """One GPU's settings; what it does not offer is null."""

    index: int
    name: str = ""
    persistence: bool | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    power_max_w: float | None = None
    sm_clock_max_mhz: int | None = None
    sm_clock_set_mhz: int | None = None
    sm_clock_mhz: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    mig: bool | None = None


def gpu_limits(nvml: Any = None) -> list[GpuLimits]:
    """Settings of every GPU of this machine; an empty list without a driver. `nvml` is pynvml (a test brings its own)."""
    nvml = _load_nvml() if nvml is None else nvml
    if nvml is None:
        return []

    def ask(name: str, *arguments: Any) -> Any:
        call = getattr(nvml, name, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except nvml.NVMLError:
            return None

    def watts(value: Any) -> float | None:
        return None if value is None else value / 1000

    found = []
    for index in range(ask("nvmlDeviceGetCount") or 0):
        gpu = ask("nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            continue
        name = ask("nvmlDeviceGetName", gpu) or ""
        band = ask("nvmlDeviceGetPowerManagementLimitConstraints", gpu)
        persistence, mig = ask("nvmlDeviceGetPersistenceMode", gpu), ask("nvmlDeviceGetMigMode", gpu)
        sm = getattr(nvml, "NVML_CLOCK_SM", 1)
        found.append(
            GpuLimits(
                index=index,
                name=name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
                persistence=None if persistence is None else bool(persistence),
                power_limit_w=watts(ask("nvmlDeviceGetPowerManagementLimit", gpu)),
                power_default_w=watts(ask("nvmlDeviceGetPowerManagementDefaultLimit", gpu)),
                power_max_w=watts(band[1]) if band else None,
                sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", gpu, sm),
                sm_clock_set_mhz=ask("nvmlDeviceGetApplicationsClock", gpu, sm),
                sm_clock_mhz=ask("nvmlDeviceGetClockInfo", gpu, sm),
                pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
                pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration", gpu),
                pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", gpu),
                pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", gpu),
                mig=None if mig is None else bool(mig[0]),
            )
        )
    return found
