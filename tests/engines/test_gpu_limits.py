"""What is set on the GPUs, through a stand-in of NVML; what a GPU does not offer is null."""

from types import SimpleNamespace
from typing import Any

from runner.engines.gpu_limits import GpuLimits, gpu_limits
from tests.engines.fake_nvml import FakeGpu, FakeNvml, NVMLError


class Settings(FakeNvml):
    """One GPU that tells everything and one that tells nothing beyond its name."""

    def nvmlDeviceGetPersistenceMode(self, gpu: FakeGpu) -> int:
        return self._told(gpu, 1)

    def nvmlDeviceGetPowerManagementLimit(self, gpu: FakeGpu) -> int:
        return self._told(gpu, 450_000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: FakeGpu) -> int:
        return self._told(gpu, 600_000)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: FakeGpu) -> list[int]:
        return [self._told(gpu, 150_000), 600_000]

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, which: int) -> int:
        assert which == self.NVML_CLOCK_SM
        return self._told(gpu, 2430)

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: FakeGpu) -> int:
        return self._told(gpu, 8)

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:
        return self._told(gpu, 16)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [self._told(gpu, 0), 0]

    def _told(self, gpu: FakeGpu, value: int) -> int:
        if gpu.uuid == "silent":
            raise NVMLError
        return value


def test_settings_of_each_gpu() -> None:
    nvml: Any = Settings([FakeGpu("GPU-1"), FakeGpu("silent", name="mute")])
    first, second = gpu_limits(nvml)
    assert (first.power_limit_w, first.power_default_w, first.power_max_w) == (450.0, 600.0, 600.0)
    assert (first.pcie_width, first.pcie_width_max, first.persistence, first.mig) == (8, 16, True, False)
    assert first.sm_clock_max_mhz == 2430 and first.pcie_generation_max is None
    assert (second.index, second.name, second.power_limit_w, second.persistence) == (1, "mute", None, None)


def test_a_library_that_offers_nothing() -> None:
    bare = SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=lambda index: index)
    assert gpu_limits(bare) == [GpuLimits(index=0)]
