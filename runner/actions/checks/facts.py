"""What the doctor looks at, gathered once. Every look may fail; what nothing tells is null, and the checks say so."""

import importlib.metadata
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.engines.gpu_limits import GpuLimits, gpu_limits
from runner.engines.gpus import GpuDevice, Gpus, GpuState
from runner.engines.topology import read_matrix, said


@dataclass(frozen=True)
class GpuFacts:
    """The GPUs that a process started now would see. `topology`, `p2p`: texts of `nvidia-smi topo -m` and `topo -p2p r`."""

    devices: Sequence[GpuDevice] = ()
    limits: Sequence[GpuLimits] = ()
    states: Sequence[GpuState] = ()
    driver: str | None = None
    occupied: Sequence[str] = ()
    topology: str | None = None
    p2p: str | None = None
    device_files: int = 0


@dataclass(frozen=True)
class BusFacts:
    """IOMMU and ACS. `acs_redirect`: PCI bridges that send traffic between GPUs up to the root, null where it cannot be read."""

    command_line: str = ""
    iommu_units: int = 0
    group_types: Sequence[str] = ()
    acs_redirect: Sequence[str] | None = None


@dataclass(frozen=True)
class HostFacts:
    """Memory and disk in bytes. `disks`: what for -> (path, free)."""

    cores: int = 1
    load_1m: float = 0.0
    memory_total: int = 0
    memory_available: int = 0
    disks: dict[str, tuple[str, int]] = field(default_factory=dict)
    governors: Sequence[str] = ()
    tools: dict[str, bool] = field(default_factory=dict)


def gpu_facts() -> GpuFacts:
    from runner.engines.gpus import visible_count

    gpus = Gpus.visible()
    if not gpus.present:
        return GpuFacts(driver=gpus.driver_version(), device_files=visible_count())
    return GpuFacts(
        devices=tuple(gpus.devices),
        limits=tuple(limit for limit in gpu_limits() if limit.index in {device.index for device in gpus.devices}),
        states=tuple(gpus.states()),
        driver=gpus.driver_version(),
        occupied=tuple(gpus.not_free(gpus.uuids)),
        topology=read_matrix(),
        p2p=said("nvidia-smi", "topo", "-p2p", "r"),
        device_files=len(gpus.devices),
    )


def bus_facts(gpus: Sequence[GpuDevice]) -> BusFacts:
    groups = sorted({text for path in Path("/sys/kernel/iommu_groups").glob("*/type") if (text := read_line(path))})
    return BusFacts(
        command_line=read_line(Path("/proc/cmdline")),
        iommu_units=sum(1 for _ in Path("/sys/class/iommu").glob("*")),
        group_types=groups,
        acs_redirect=bridges_that_redirect([device.pci for device in gpus if device.pci]),
    )


def read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def bridges_that_redirect(addresses: Sequence[str], devices: Path = Path("/sys/bus/pci/devices")) -> list[str] | None:
    """Bridges above these GPUs with ACS redirection on. None where the extended configuration cannot be read (it needs root)."""
    if not addresses:
        return None
    found: list[str] = []
    seen: set[str] = set()
    readable = False
    for address in addresses:
        short = address.lower()[-12:]  # NVML writes eight digits of domain, sysfs four
        try:
            chain = (devices / short).resolve().parts
        except OSError:
            continue
        for bridge in (part for part in chain[:-1] if part.count(":") == 2 and part not in seen):
            seen.add(bridge)
            try:
                config = (devices / bridge / "config").read_bytes()
            except OSError:
                continue
            redirect = acs_redirects(config)
            readable = readable or len(config) > 256
            if redirect:
                found.append(bridge)
    return found if readable else None


def acs_redirects(config: bytes) -> bool | None:
    """Does this PCI function redirect peer requests upstream? Walks the extended capabilities (PCI Express Base 6.0, 7.7.11: ACS is
    0x000D, control at +6, bit 2 P2P Request Redirect, bit 3 Completion Redirect). None without extended configuration or ACS."""
    at, steps = 0x100, 0
    while 0x100 <= at <= len(config) - 8 and steps < 64:
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == 0x000D:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & 0b1100)
        at, steps = header >> 20, steps + 1
    return None


def host_facts(folders: dict[str, Path]) -> HostFacts:
    """`folders`: what for -> a path that need not exist yet."""
    import psutil

    memory = psutil.virtual_memory()
    disks = {}
    for what, path in folders.items():
        there = next((parent for parent in (path, *path.parents) if parent.exists()), None)
        if there is not None:
            disks[what] = (str(path), shutil.disk_usage(there).free)
    governors = {read_line(path) for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")}
    return HostFacts(
        cores=len(os.sched_getaffinity(0)),
        load_1m=os.getloadavg()[0],
        memory_total=memory.total,
        memory_available=memory.available,
        disks=disks,
        governors=sorted(governors - {""}),
        tools={name: shutil.which(name) is not None for name in ("gcc", "nvcc", "ninja", "nvidia-smi")},
    )


def installed(package: str) -> str | None:
    """The version of a package of our own interpreter, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
