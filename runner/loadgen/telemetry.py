"""Watches the server and the GPUs once a second during a phase: /metrics and NVML. A series as artifact, a summary in the record."""

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

import requests

from runner.loadgen.base import PhaseOrder
from runner.loadgen.control import session
from runner.records.paths import LaunchPaths
from runner.records.schema import Telemetry

PERIOD_S = 1.0
# What slows a GPU down against its will (bits of nvmlDeviceGetCurrentClocksEventReasons). Idle (1) and a power cap of the
# card (4) are everyday states: the cap is noted but does not make a phase invalid, it holds for every arm.
REASONS = {
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
INVALIDATING = {"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}
GAUGES = (
    "num_running_reqs",
    "num_queue_reqs",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "spec_accept_length",
    "num_retracted_reqs",
)


@dataclass(frozen=True)
class Watched:
    """What the watching gave."""

    summary: Telemetry = field(default_factory=Telemetry)
    invalid_reasons: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


def parse_metrics(text: str) -> dict[str, float]:
    """Gauges of SGLang's /metrics, by name without prefix. Several ranks report the same gauge: the largest is taken
    (every rank of a tensor-parallel group holds the same requests)."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("sglang:"):
            continue
        head, _, value = line.rpartition(" ")
        name = head.removeprefix("sglang:").partition("{")[0]
        if name in GAUGES:
            with contextlib.suppress(ValueError):
                found[name] = max(found.get(name, float("-inf")), float(value))
    return found


class Watch:
    """A context: samples in a thread of this process (the load runs in others) from enter to exit."""

    def __init__(self, order: PhaseOrder, period_s: float = PERIOD_S) -> None:
        self._order, self._period = order, period_s
        self._samples: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_metrics = True

    def __enter__(self) -> "Watch":
        if self._order.scrape:
            self._thread = threading.Thread(target=self._loop, daemon=True, name="loadgen-watch")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def result(self) -> Watched:
        """After exit: summary, reasons against the phase, and the written series (none when nothing was sampled)."""
        samples = list(self._samples)
        if not samples:
            return Watched()
        path = LaunchPaths(Path(self._order.folder)).telemetry(self._order.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(sample, separators=(",", ":")) + "\n" for sample in samples), encoding="utf-8")
        summary = summarise(samples)
        return Watched(summary, tuple(against(summary)), {"telemetry": path})

    def _loop(self) -> None:
        gpus = open_gpus(self._order.gpu_uuids)
        tree = process_tree(self._order.server_pid)
        with session() as http:
            due = time.monotonic()
            while True:
                sample: dict[str, Any] = {"t": time.time()}
                server = self._scrape(http)
                if server:
                    sample["server"] = server
                if gpus:
                    sample["gpus"] = [gpu.sample(tree) for gpu in gpus]
                if len(sample) > 1:
                    self._samples.append(sample)
                due += self._period
                if self._stop.wait(max(0.05, due - time.monotonic())):
                    return

    def _scrape(self, http: requests.Session) -> dict[str, float]:
        if not self._has_metrics:
            return {}
        try:
            answer = http.get(f"{self._order.url}/metrics", timeout=2)
        except requests.RequestException:
            return {}
        if answer.status_code != 200:
            self._has_metrics = False
            return {}
        return parse_metrics(answer.text)


ALL_LINKS = 0xFFFFFFFF
NVLINK = {"nvlink_tx_gb_s": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "nvlink_rx_gb_s": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"}


class Gpu:
    """One GPU through NVML. A quantity that the card does not offer is left out of the sample."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._links: dict[str, tuple[float, int]] = {}

    def sample(self, server_tree: set[int]) -> dict[str, Any]:
        """Clocks MHz, power W, temperature C, throttle reasons, PCIe GB/s (over 20 ms), NVLink GB/s (since the sample
        before), memory GB, foreign processes."""
        n, h = self._nvml, self._handle
        reads = {
            "sm_mhz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
            "mem_mhz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
            "power_w": lambda: n.nvmlDeviceGetPowerUsage(h) / 1e3,
            "temp_c": lambda: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
            "tx_gb_s": lambda: n.nvmlDeviceGetPcieThroughput(h, n.NVML_PCIE_UTIL_TX_BYTES) * 1024 / 1e9,
            "rx_gb_s": lambda: n.nvmlDeviceGetPcieThroughput(h, n.NVML_PCIE_UTIL_RX_BYTES) * 1024 / 1e9,
            "mem_gb": lambda: n.nvmlDeviceGetMemoryInfo(h).used / 1e9,
            "throttle": lambda: reasons_of(n.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
            "foreign": lambda: foreign([p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)], server_tree),
        }
        found: dict[str, Any] = {}
        for name, read in reads.items():
            try:
                found[name] = read()  # type: ignore[no-untyped-call]
            except n.NVMLError:
                continue
        return found | self._nvlink()

    def _nvlink(self) -> dict[str, float]:
        """Data over all links, GB/s, from the driver's counters (KiB since it was loaded; nvml.h, field values 138 and 139): the mean
        since the sample before. Nothing on a card without links, on the first sample, and where a counter was reset."""
        n, found, seen = self._nvml, {}, self._links
        self._links = {}
        try:
            asked = [(getattr(n, field), ALL_LINKS) for field in NVLINK.values()]
            answers = n.nvmlDeviceGetFieldValues(self._handle, asked)
        except (n.NVMLError, AttributeError):
            return {}
        now = time.monotonic()
        for name, answer in zip(NVLINK, answers, strict=True):
            if answer.nvmlReturn != 0:
                continue
            count = int(answer.value.ullVal)
            self._links[name] = (now, count)
            before, counted = seen.get(name, (now, count))
            if now > before and count >= counted:
                found[name] = (count - counted) * 1024 / 1e9 / (now - before)
        return found


def reasons_of(bits: int) -> list[str]:
    """Names of the throttle reasons that are set."""
    return [name for bit, name in REASONS.items() if bits & bit]


def foreign(pids: Iterable[int], server_tree: set[int]) -> int:
    """How many of a GPU's processes are not the server's. When none of them is known to be the server's (process ids of
    another namespace, or an attached server), nothing can be told and it is 0."""
    listed = set(pids)
    return len(listed - server_tree) if listed & server_tree else 0


def open_gpus(uuids: Sequence[str]) -> list[Gpu]:
    """The GPUs by UUID, all visible ones where none is named; [] on a machine without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no driver, no library, no permission: all mean that there is nothing to watch
        return []
    try:
        if uuids:
            return [Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)) for uuid in uuids]
        return [Gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def process_tree(pid: int | None) -> set[int]:
    """`pid` and its descendants; empty when it is null or gone."""
    if pid is None:
        return set()
    import psutil

    try:
        parent = psutil.Process(pid)
        return {pid, *(child.pid for child in parent.children(recursive=True))}
    except psutil.Error:
        return set()


def summarise(samples: Sequence[Mapping[str, Any]]) -> Telemetry:
    """One Telemetry from the series: over all GPUs and seconds."""
    gpus = [gpu for sample in samples for gpu in sample.get("gpus", ())]
    server = [sample["server"] for sample in samples if "server" in sample]

    def values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
        return [float(row[name]) for row in rows if name in row]

    def reduced(rows: Sequence[Mapping[str, Any]], name: str, how: Any) -> float | None:
        found = values(rows, name)
        return float(how(found)) if found else None

    retracted = values(server, "num_retracted_reqs")
    return Telemetry(
        sm_clock_mhz_p50=reduced(gpus, "sm_mhz", median),
        memory_clock_mhz_p50=reduced(gpus, "mem_mhz", median),
        power_w_mean=reduced(gpus, "power_w", fmean),
        temperature_c_max=reduced(gpus, "temp_c", max),
        throttle_reasons=tuple(sorted({reason for gpu in gpus for reason in gpu.get("throttle", ())})),
        pcie_tx_gb_s=reduced(gpus, "tx_gb_s", fmean),
        pcie_rx_gb_s=reduced(gpus, "rx_gb_s", fmean),
        nvlink_tx_gb_s=reduced(gpus, "nvlink_tx_gb_s", fmean),
        nvlink_rx_gb_s=reduced(gpus, "nvlink_rx_gb_s", fmean),
        memory_used_gb_max=reduced(gpus, "mem_gb", max),
        foreign_processes=int(max(values(gpus, "foreign"), default=0)),
        running_requests_mean=reduced(server, "num_running_reqs", fmean),
        queued_requests_max=reduced(server, "num_queue_reqs", max),
        accept_length=reduced([row for row in server if row.get("spec_accept_length", 0) > 0], "spec_accept_length", fmean),
        retractions=max(retracted) if retracted else None,
    )


def against(summary: Telemetry) -> list[str]:
    """Why the node was not fit: throttling, or somebody else on the GPUs."""
    reasons = []
    throttled = sorted(set(summary.throttle_reasons) & INVALIDATING)
    if throttled:
        reasons.append(f"node: the GPU was throttled ({', '.join(throttled)})")
    if summary.foreign_processes:
        reasons.append(f"node: {summary.foreign_processes} foreign process(es) on the GPU")
    return reasons
