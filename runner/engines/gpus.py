"""The node's GPUs through NVML: who uses them, whether their memory is free, and how they feel. Loaded only when asked.

No driver, no library or no visible GPU gives an empty list, never an error. `nvml` is the module `pynvml` (a test brings its own).
Units: bytes, MHz, W, degrees Celsius, bytes a second.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.engines import process
from runner.errors import NodeBusy

FREE_BYTES = 1 << 30
"""A GPU is free with less than this in use, what the driver reserves for itself left out."""
POLL_S = 0.1

# nvmlClocksEventReasons*, by bit (nvml.h).
REASONS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"})


@dataclass(frozen=True)
class GpuDevice:
    """One GPU. `capability` is compute capability times ten; `index` is NVML's, in PCI order."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    capability: int
    pci: str = ""


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU; `memory_bytes` null where the driver does not say."""

    uuid: str
    pid: int
    name: str
    memory_bytes: int | None = None

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**30:.1f} GiB"
        return f"pid {self.pid} ({self.name or 'unnamed'}{memory})"


@dataclass(frozen=True)
class GpuState:
    """One look at one GPU; what a GPU does not offer is null."""

    uuid: str
    at: float
    memory_used: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    pcie_tx: int | None = None
    pcie_rx: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlink_tx: int | None = field(default=None, metadata={"note": "bytes since the driver was loaded, all links"})
    nvlink_rx: int | None = None
    utilization_pct: int | None = None
    ecc_uncorrected: int | None = None


class Gpus:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves visible. `Gpus(None)` has none."""

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self.devices: list[GpuDevice] = []
        if nvml is not None:
            self._find(visible)

    @classmethod
    def visible(cls) -> "Gpus":
        """The GPUs that a process started now would see."""
        return cls(_load_nvml(), os.environ.get("CUDA_VISIBLE_DEVICES"))

    @property
    def present(self) -> bool:
        return bool(self.devices)

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.devices)

    def driver_version(self) -> str | None:
        """The NVIDIA driver's version; None where there is no driver."""
        return None if self._nvml is None else _text(self._ask("nvmlSystemGetDriverVersion")) or None

    def _find(self, visible: str | None) -> None:
        found: list[tuple[GpuDevice, Any]] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            pci = self._ask("nvmlDeviceGetPciInfo", handle)
            device = GpuDevice(
                index=index,
                uuid=_text(self._ask("nvmlDeviceGetUUID", handle)) or f"gpu-{index}",
                name=_text(self._ask("nvmlDeviceGetName", handle)),
                memory_bytes=0 if memory is None else int(memory.total),
                capability=int(capability[0]) * 10 + int(capability[1]),
                pci=_text(getattr(pci, "busId", "")),
            )
            found.append((device, handle))
        for device, handle in _chosen(found, visible):
            self.devices.append(device)
            self._handles[device.uuid] = handle

    def _ask(self, name: str, *arguments: Any) -> Any:
        """One NVML call; None where this GPU or this driver does not offer it."""
        call = getattr(self._nvml, name, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    # --- who uses them ---------------------------------------------------------------------------------------------
    def processes(self, uuids: Iterable[str] | None = None) -> list[GpuProcess]:
        """Processes that compute on these GPUs (all by default). In a container their pids may be the host's."""
        found: dict[tuple[str, int], GpuProcess] = {}
        for uuid in self.uuids if uuids is None else uuids:
            for each in self._ask("nvmlDeviceGetComputeRunningProcesses", self._handles[uuid]) or ():
                pid = int(each.pid)
                name = process.command_line(pid)[:120] or _text(self._ask("nvmlSystemGetProcessName", pid))[:120]
                memory = None if each.usedGpuMemory is None else int(each.usedGpuMemory)
                found[(uuid, pid)] = GpuProcess(uuid, pid, name, memory)
        return list(found.values())

    def foreign(self, own_pids: Collection[int] = (), uuids: Iterable[str] | None = None) -> list[GpuProcess]:
        """Processes on these GPUs that are not ours."""
        return [each for each in self.processes(uuids) if each.pid not in own_pids]

    def memory_used(self, uuid: str) -> int | None:
        """Bytes in use without what the driver reserves; None when the GPU does not say."""
        handle = self._handles[uuid]
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = self._ask("nvmlDeviceGetMemoryInfo", handle, version) if version is not None else None
        if info is None:
            info = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return None if info is None else int(info.used)

    def not_free(self, uuids: Iterable[str], own_pids: Collection[int] = ()) -> list[str]:
        """Why these GPUs are not free, in words; empty when they are."""
        wanted = list(uuids)
        reasons = [f"{each} on {self._named(each.uuid)}" for each in self.foreign(own_pids, wanted)]
        busy = {each.uuid for each in self.processes(wanted)}
        for uuid in wanted:
            used = self.memory_used(uuid)
            if uuid not in busy and used is not None and used > FREE_BYTES:
                reasons.append(f"{used / 2**30:.1f} GiB in use on {self._named(uuid)} by a process that cannot be seen from here")
        return reasons

    def _named(self, uuid: str) -> str:
        device = next(each for each in self.devices if each.uuid == uuid)
        return f"GPU {device.index} ({device.name})"

    def wait_free(self, uuids: Iterable[str], own_pids: Collection[int] = (), timeout: float = 60.0) -> bool:
        """True as soon as no process but `own_pids` computes on these GPUs and their memory is free; False after `timeout` s."""
        wanted = list(uuids)
        deadline = time.monotonic() + timeout
        while self.not_free(wanted, own_pids):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def demand_free(self, own_pids: Collection[int] = (), timeout: float = 60.0) -> None:
        """Waits up to `timeout` seconds for the GPUs. Raises NodeBusy that names who holds them."""
        if self.present and not self.wait_free(self.uuids, own_pids, timeout):
            reasons = self.not_free(self.uuids, own_pids)
            if reasons:
                raise NodeBusy(f"the GPUs are not free after {timeout:g} s: {'; '.join(reasons[:8])}. They are not ours to end")

    # --- how they feel ---------------------------------------------------------------------------------------------
    def state(self, uuid: str) -> GpuState:
        """One look at one GPU (a few milliseconds; PCIe counters take 20 ms each on some drivers)."""
        handle, nvml = self._handles[uuid], self._nvml
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        tx, rx = (self._ask("nvmlDeviceGetPcieThroughput", handle, getattr(nvml, name, number)) for name, number in _PCIE)
        usage = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return GpuState(
            uuid=uuid,
            at=time.monotonic(),
            memory_used=self.memory_used(uuid),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_MEM", 2)),
            power_w=None if power is None else power / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, getattr(nvml, "NVML_TEMPERATURE_GPU", 0)),
            throttle_reasons=reasons_of(bits or 0),
            pcie_tx=None if tx is None else tx * 1024,
            pcie_rx=None if rx is None else rx * 1024,
            pcie_generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            nvlink_tx=self._nvlink(handle, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
            nvlink_rx=self._nvlink(handle, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
            utilization_pct=None if usage is None else int(usage.gpu),
            ecc_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        )

    def states(self) -> list[GpuState]:
        """One look at every GPU."""
        return [self.state(uuid) for uuid in self.uuids]

    def _nvlink(self, handle: Any, name: str) -> int | None:
        """Payload bytes over all links of one GPU so far (the counter is in KiB)."""
        number = getattr(self._nvml, name, None)
        if number is None:
            return None
        # Scope UINT32_MAX asks for the sum over the links (nvml.h, nvmlFieldValue_t.scopeId).
        values = self._ask("nvmlDeviceGetFieldValues", handle, [(number, 0xFFFFFFFF)])
        if not values or int(values[0].nvmlReturn) != 0:
            return None
        return int(values[0].value.ullVal) * 1024


_PCIE = (("NVML_PCIE_UTIL_TX_BYTES", 0), ("NVML_PCIE_UTIL_RX_BYTES", 1))


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the reasons for a lower clock, those that do no harm left out."""
    named = (name for bit, name in REASONS.items() if bits & bit)
    return tuple(name for name in named if name not in HARMLESS)


def visible_count() -> int:
    """GPUs that a process started now would see. Without NVML the device files are counted (a driver without its library)."""
    nvml = _load_nvml()
    if nvml is not None:
        return len(Gpus(nvml, os.environ.get("CUDA_VISIBLE_DEVICES")).devices)
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return 0
    return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def _chosen(found: list[tuple[GpuDevice, Any]], visible: str | None) -> list[tuple[GpuDevice, Any]]:
    """CUDA's rule: a comma-separated list of indices or (prefixes of) UUIDs, cut at the first that does not exist."""
    if visible is None or visible.strip().lower() == "all":
        return found
    chosen: list[tuple[GpuDevice, Any]] = []
    for word in (each.strip() for each in visible.split(",")):
        match = [pair for pair in found if word and (str(pair[0].index) == word or pair[0].uuid.startswith(word))]
        if not match:
            break
        chosen.append(match[0])
    return chosen


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _load_nvml() -> Any:
    """The module `pynvml`, initialised, or None where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
