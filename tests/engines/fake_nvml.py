"""A stand-in for the module pynvml: as many GPUs as wanted, with processes that come and go. Not a test file."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    used: int = 0
    total: int = 96 << 30
    capability: tuple[int, int] = (12, 0)
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    reasons: int = 0
    nvlink: bool = False


class FakeNvml:
    """Only what an old driver offers when `old`: no second version of the memory call, throttle reasons under the former name."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def __init__(self, gpus: list[FakeGpu], old: bool = False) -> None:
        self.gpus, self.old, self.asked = gpus, old, 0
        if not old:
            self.nvmlMemory_v2 = 2
            self.nvmlDeviceGetCurrentClocksEventReasons = self._reasons
        else:
            self.nvmlDeviceGetCurrentClocksThrottleReasons = self._reasons

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(busId=b"00000000:01:00.0")

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        reserved = 0 if version == 2 else 600 << 20
        return SimpleNamespace(total=gpu.total, used=gpu.used + reserved, free=gpu.total - gpu.used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self.asked += 1
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu.processes]

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        return b"/usr/bin/somebody-elses-trainer"

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return 412_500

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        return {1: 2430, 2: 14001}[kind]

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, kind: int) -> int:
        return 71

    def nvmlDeviceGetPcieThroughput(self, gpu: FakeGpu, counter: int) -> int:
        return 1051 if counter == 0 else 596

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: FakeGpu) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: FakeGpu) -> int:
        return 16

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[Any]) -> list[Any]:
        value = SimpleNamespace(ullVal=1000 if gpu.nvlink else 0)
        return [SimpleNamespace(nvmlReturn=0 if gpu.nvlink else 3, value=value) for _ in fields]

    def _reasons(self, gpu: FakeGpu) -> int:
        return gpu.reasons
