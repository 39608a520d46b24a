"""How the GPUs are joined: topology, NUMA, PCIe, peer access, IOMMU and ACS."""

import re
from collections import Counter

from runner.actions.checks.facts import BusFacts, GpuFacts
from runner.actions.checks.finding import Finding, fail, ok, warn
from runner.engines.topology import ANSI, Topology, parse_topology
from runner.spec.node import NodeSpec

# One lane in one direction, GB/s, coding taken off (PCI Express Base Specification: 8b/10b to Gen2, 128b/130b to Gen5, flits in Gen6).
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
P2P_WORDS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "a registry key disabled it",
    "NS": "not supported",
    "U": "unknown",
}


def check_topology(facts: GpuFacts, node: NodeSpec) -> list[Finding]:
    """Links and NUMA nodes against the node's description."""
    if not facts.devices:
        return []
    if facts.topology is None:
        return [
            warn("topology", "nvidia-smi topo -m gave nothing", "install nvidia-smi, or run it on the host and compare with the node file")
        ]
    try:
        topology = parse_topology(facts.topology)
    except ValueError as error:
        return [warn("topology", f"nvidia-smi topo -m cannot be read: {error}", "send the text with a report")]
    return [_kind(topology, node), *_numa(topology, node)]


def _kind(topology: Topology, node: NodeSpec) -> Finding:
    text = topology.summary()
    if topology.kind == node.link or (topology.kind == "none" and node.gpus < 2):
        return ok("topology", text)
    return fail(
        "topology", f"{text}: node {node.name} says link={node.link}", f"choose the node file that fits, or set node.link={topology.kind}"
    )


def _numa(topology: Topology, node: NodeSpec) -> list[Finding]:
    nodes = topology.numa_nodes
    if not nodes:
        return [
            warn("NUMA", "nvidia-smi does not tell the GPUs' NUMA nodes", "a virtual machine may hide them; numa_bind cannot be used then")
        ]
    found = []
    if len(nodes) != node.numa_nodes and node.gpus == len(topology.gpus):
        found.append(
            warn("NUMA", f"GPUs on {len(nodes)} NUMA nodes, node {node.name} says {node.numa_nodes}", f"set node.numa_nodes={len(nodes)}")
        )
    halves = Counter(topology.numa)
    if len(nodes) > 1:
        split = ", ".join(f"{halves[each]} on node {each}" for each in nodes)
        crossing = sum(word == "SYS" for word in topology.pairs())
        found.append(
            ok("NUMA", f"{split}; {crossing} of {len(topology.pairs())} pairs cross the socket link (the factor numa_bind binds ranks)")
        )
        if len(set(halves.values())) > 1:
            found.append(warn("NUMA", f"the split is uneven: {split}", "tensor parallel size should divide evenly over the NUMA nodes"))
    elif not found:
        found.append(ok("NUMA", f"all GPUs on node {nodes[0]}"))
    return found


def check_pcie(facts: GpuFacts, node: NodeSpec) -> list[Finding]:
    """Generation and width now and at most. A lower generation on an idle GPU is power saving; fewer lanes never are."""
    if not facts.limits:
        return []
    words = []
    found = []
    for gpu in facts.limits:
        if gpu.pcie_width is None or gpu.pcie_generation is None:
            continue
        words.append(f"Gen{gpu.pcie_generation} x{gpu.pcie_width} of Gen{gpu.pcie_generation_max or '?'} x{gpu.pcie_width_max or '?'}")
        if gpu.pcie_width_max is not None and gpu.pcie_width < gpu.pcie_width_max:
            found.append(
                fail(
                    "PCIe",
                    f"GPU {gpu.index} runs x{gpu.pcie_width} of x{gpu.pcie_width_max}",
                    "reseat the card or riser, and look at the slot's bifurcation in the firmware",
                )
            )
    if not words:
        return [warn("PCIe", "the driver does not tell generation and width", "lspci -vv as root shows LnkSta and LnkCap")]
    counted = ", ".join(f"{count} GPUs {text}" for text, count in Counter(words).items())
    slow = [gpu for gpu in facts.limits if gpu.pcie_generation is not None and gpu.pcie_generation < (gpu.pcie_generation_max or 0)]
    idle = " (idle GPUs save power; look again under load)" if slow else ""
    if not found:
        found.append(ok("PCIe", counted + idle))
    top = [
        LANE_GB_S.get(gpu.pcie_generation_max, 0.0) * gpu.pcie_width_max
        for gpu in facts.limits
        if gpu.pcie_generation_max and gpu.pcie_width_max
    ]
    if node.link == "pcie" and top and node.link_gb_s > 1.05 * min(top):
        found.append(
            warn(
                "PCIe",
                f"node {node.name} says {node.link_gb_s:g} GB/s, the slowest link gives at most {min(top):.0f}",
                f"set node.link_gb_s={min(top):.0f}",
            )
        )
    return found


def check_peer_access(facts: GpuFacts) -> list[Finding]:
    """`nvidia-smi topo -p2p r`: may the GPUs read each other's memory?"""
    if len(facts.devices) < 2:
        return []
    if facts.p2p is None:
        return [warn("P2P", "nvidia-smi topo -p2p r gave nothing: peer access is not known", "run it on the host")]
    words = p2p_words(facts.p2p)
    if not words:
        return [warn("P2P", "nvidia-smi topo -p2p r cannot be read", "run it on the host")]
    bad = Counter(word for word in words if word != "OK")
    if not bad:
        return [ok("P2P", f"all {len(words)} ordered pairs can read each other")]
    why = "; ".join(f"{count} pairs {word} ({P2P_WORDS.get(word, 'no peer access')})" for word, count in bad.items())
    return [
        warn(
            "P2P",
            why,
            "custom all-reduce, MSCCL++ and PCIe-IPC need peer access and fall back or fail without it: look at the driver and at IOMMU and ACS",
        )
    ]


def p2p_words(text: str) -> list[str]:
    """Status of every ordered pair of GPUs, without the diagonal."""
    found = []
    for line in text.splitlines():
        cells = ANSI.sub("", line).split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]) and len(cells) > 1 and not re.fullmatch(r"GPU\d+", cells[1]):
            found += [cell for cell in cells[1:] if cell != "X"]
    return found


def check_bus(bus: BusFacts, facts: GpuFacts) -> list[Finding]:
    """IOMMU and ACS send traffic between PCIe GPUs up to the root complex, or block it: hints, since not all can be read."""
    if len(facts.devices) < 2:
        return []
    found = []
    translated = bus.iommu_units > 0 and any(kind.startswith("DMA") for kind in bus.group_types)
    passthrough = "iommu=pt" in bus.command_line or (bus.group_types and not translated)
    if translated and not passthrough:
        found.append(
            warn(
                "IOMMU",
                "on, with translation: peer traffic between GPUs may be slow or wrong",
                "boot with iommu=pt, or switch it off in the firmware",
            )
        )
    elif bus.iommu_units:
        found.append(ok("IOMMU", "on, passing through"))
    else:
        found.append(ok("IOMMU", "no unit is shown (off, or hidden by a virtual machine)"))
    if bus.acs_redirect is None:
        found.append(
            warn("ACS", "cannot be read without root", "as root: lspci -vvv | grep -i acsctl; ReqRedir+ on a bridge slows peer traffic")
        )
    elif bus.acs_redirect:
        found.append(
            warn(
                "ACS",
                f"peer requests are redirected to the root on {len(bus.acs_redirect)} bridges ({', '.join(bus.acs_redirect[:4])})",
                "switch ACS off in the firmware, or with setpci as root on those bridges",
            )
        )
    else:
        found.append(ok("ACS", "no bridge above the GPUs redirects"))
    return found
