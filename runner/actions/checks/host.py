"""The machine around the GPUs: memory, disk, cores, compilers, ports."""

from collections.abc import Callable

from runner.actions.checks.facts import HostFacts
from runner.actions.checks.finding import Finding, fail, ok, warn

GB = 1e9
NEEDED_GB = {"results": (1.0, 10.0), "compile caches": (1.0, 10.0), "shared memory": (0.25, 8.0)}
"""What for -> (fail under, warn under), GB free."""


def check_host(facts: HostFacts, real: bool) -> list[Finding]:
    """`real`: a real engine compiles and loads here."""
    found = [_memory(facts, real), *(_disk(what, path, free, real) for what, (path, free) in facts.disks.items())]
    busy = facts.load_1m / max(1, facts.cores)
    cores = f"{facts.cores} cores, load {facts.load_1m:.1f}"
    if facts.cores < 4:
        found.append(warn("cores", cores, "the load client and the engine want 4 cores of their own; timing errors grow with fewer"))
    elif busy > 0.5:
        found.append(warn("cores", cores, "something else works on this machine; see who with top"))
    else:
        found.append(ok("cores", cores))
    slow = [name for name in facts.governors if name != "performance"]
    if slow:
        found.append(warn("CPU governor", ", ".join(facts.governors), "cpupower frequency-set -g performance as root"))
    missing = [name for name in ("gcc", "ninja") if not facts.tools.get(name, True)]
    if real and missing:
        found.append(
            warn(
                "compilers",
                f"no {', '.join(missing)}: kernels that the engine compiles at start will fail",
                f"install {' and '.join(missing)}",
            )
        )
    return found


def _memory(facts: HostFacts, real: bool) -> Finding:
    free, total = facts.memory_available / GB, facts.memory_total / GB
    text = f"{free:.1f} of {total:.0f} GB available"
    if free < 1:
        return fail("memory", text, "the kernel would end the engine; free some memory")
    if real and free < 16:
        return warn("memory", text, "loading a model wants 16 GB and more of host memory")
    return ok("memory", text)


def _disk(what: str, path: str, free: int, real: bool) -> Finding:
    low, enough = NEEDED_GB.get(what, (1.0, 5.0))
    text = f"{free / GB:.1f} GB free for {what} ({path})"
    if free / GB < low:
        return fail("disk", text, "free some space, or point tracking.root or engine.cache_root elsewhere")
    if real and free / GB < enough:
        return warn(
            "disk",
            text,
            "a container gives more shared memory with --ipc=host or --shm-size" if what == "shared memory" else "free some space",
        )
    return ok("disk", text)


def check_ports(port_range: tuple[int, int], ephemeral: tuple[int, int], is_free: Callable[[int], bool]) -> list[Finding]:
    """The range must lie outside what the kernel hands out by itself; a sample of 20 of its ports is tried."""
    low, high = port_range
    first, last = ephemeral
    if not 1024 <= low <= high <= 65535:
        return [fail("ports", f"engine.port_range={low}-{high} is no range of ports", "engine.port_range=[21000,21999]")]
    outside = [port for port in range(low, high + 1) if not first <= port <= last]
    if not outside:
        return [
            fail(
                "ports",
                f"{low}-{high} lies inside the kernel's own range {first}-{last}",
                "choose one outside: engine.port_range=[21000,21999]",
            )
        ]
    sample = outside[:: max(1, len(outside) // 20)][:20]
    free = sum(is_free(port) for port in sample)
    text = f"{low}-{high}, kernel's own {first}-{last}; {free} of {len(sample)} tried are free"
    if free == 0:
        return [fail("ports", text, "choose another engine.port_range")]
    if len(outside) < high - low + 1:
        return [warn("ports", f"{text}; the range overlaps the kernel's", "choose one wholly outside")]
    return [ok("ports", text)]
