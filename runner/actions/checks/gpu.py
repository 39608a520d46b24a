"""Are these the GPUs that the node's file describes, and are they free?"""

from collections.abc import Sequence

from runner.actions.checks.facts import GpuFacts
from runner.actions.checks.finding import Finding, fail, ok, warn
from runner.spec.node import NodeSpec

UNKNOWABLE = "driver, topology, PCIe link, clocks, power limits, persistence, foreign processes and P2P"


def check_gpus(facts: GpuFacts, node: NodeSpec, engine: str) -> list[Finding]:
    """Count, model and capability against the node's description. Without GPUs: what cannot be known."""
    if not facts.devices:
        return [_without(facts, node, engine)]
    found = [_count(facts, node)]
    kinds = sorted({device.name for device in facts.devices})
    capabilities = sorted({device.capability for device in facts.devices})
    if len(kinds) > 1:
        found.append(warn("gpu model", f"different GPUs: {', '.join(kinds)}", "limit CUDA_VISIBLE_DEVICES to GPUs of one kind"))
    if capabilities != [node.capability]:
        shown = ", ".join(f"SM{each}" for each in capabilities)
        found.append(
            fail(
                "gpu model",
                f"{kinds[0]} is {shown}, node {node.name} says SM{node.capability}: the plan's rules would be wrong",
                "choose the node file that fits (node=...) or set node.capability",
            )
        )
    elif len(kinds) == 1:
        found.append(ok("gpu model", f"{kinds[0]}, SM{node.capability}"))
    smallest = min(device.memory_bytes for device in facts.devices) / 1e9
    if smallest < 0.9 * node.memory_gb:
        found.append(
            warn("gpu memory", f"{smallest:.0f} GB a GPU, node {node.name} says {node.memory_gb:g}", f"set node.memory_gb={smallest:.0f}")
        )
    return [*found, *_health(facts)]


def _without(facts: GpuFacts, node: NodeSpec, engine: str) -> Finding:
    if node.gpus == 0:
        return ok("gpus", f"node {node.name} has none, and none is visible")
    if facts.device_files:
        return fail(
            "gpus",
            f"{facts.device_files} GPU device files, but the driver's library (NVML) does not answer",
            "run nvidia-smi; after a driver update reboot or reload the modules; in a container pass the driver in (--gpus all)",
        )
    if engine in ("sglang", "container"):
        return fail(
            "gpus",
            f"none is visible, node {node.name} has {node.gpus}",
            "run this on the node, or look at CUDA_VISIBLE_DEVICES; the CPU alone is node=cpu",
        )
    return warn(
        "gpus",
        f"none is visible: {UNKNOWABLE} of node {node.name} cannot be known here, and results would be SIMULATED",
        "run action=doctor on the node",
    )


def _count(facts: GpuFacts, node: NodeSpec) -> Finding:
    count = len(facts.devices)
    if count < node.gpus:
        return fail("gpus", f"{count} visible, node {node.name} has {node.gpus}", "look at CUDA_VISIBLE_DEVICES and at nvidia-smi -L")
    if count > node.gpus:
        return warn("gpus", f"{count} visible, node {node.name} has {node.gpus}", f"set CUDA_VISIBLE_DEVICES, or node.gpus={count}")
    return ok("gpus", f"{count} visible")


def _health(facts: GpuFacts) -> list[Finding]:
    found = []
    broken = [str(state.uuid)[:12] for state in facts.states if state.ecc_uncorrected]
    if broken:
        found.append(
            fail("gpu errors", f"uncorrected memory errors on {', '.join(broken)}", "nvidia-smi -q -d ECC; reset or replace that GPU")
        )
    split = [limit.index for limit in facts.limits if limit.mig]
    if split:
        found.append(
            fail(
                "MIG", f"on, GPU {', '.join(map(str, split))}", "a split GPU has no peer access; switch MIG off with whoever owns the node"
            )
        )
    return found


def check_driver(facts: GpuFacts) -> list[Finding]:
    if not facts.devices:
        return []
    return [ok("driver", facts.driver)] if facts.driver else [warn("driver", "its version is not told", "run nvidia-smi")]


def check_occupied(facts: GpuFacts) -> list[Finding]:
    """Foreign processes and memory that is not free. They are not ours to end."""
    if not facts.devices:
        return []
    if not facts.occupied:
        return [ok("foreign processes", "none on the GPUs")]
    shown = "; ".join(facts.occupied[:8])
    return [fail("foreign processes", shown, "wait for them, or ask their owner; leftovers of the runner itself: action=clean")]


def all_equal(values: Sequence[object]) -> bool:
    return len(set(values)) <= 1
