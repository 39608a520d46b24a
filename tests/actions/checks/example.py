"""Two machines for the doctor: eight PCIe GPUs on two NUMA halves, two H200s on NVLink. Not a test file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.actions.checks.facts import GpuFacts
from runner.actions.checks.finding import Finding
from runner.engines.gpu_limits import GpuLimits
from runner.engines.gpus import GpuDevice, GpuState
from runner.spec.node import NodeSpec

TOPOLOGY = Path(__file__).parents[2] / "fixtures/topology"


def p2p_text(count: int, word: str = "OK") -> str:
    """As `nvidia-smi topo -p2p r` prints it."""
    head = "\t" + "\t".join(f"GPU{index}" for index in range(count)) + "\n"
    rows = ["\t".join([f"GPU{i}", *("X" if i == j else word for j in range(count))]) for i in range(count)]
    return head + "\n".join(rows) + "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"


def machine(count: int, name: str, capability: int, memory_gb: int, topology: str) -> GpuFacts:
    limits = [
        GpuLimits(
            index=index,
            name=name,
            persistence=True,
            power_limit_w=600.0,
            power_default_w=600.0,
            power_max_w=600.0,
            sm_clock_max_mhz=2430,
            sm_clock_set_mhz=2430,
            sm_clock_mhz=2300,
            pcie_generation=5,
            pcie_generation_max=5,
            pcie_width=16,
            pcie_width_max=16,
            mig=False,
        )
        for index in range(count)
    ]
    return GpuFacts(
        devices=[GpuDevice(index, f"GPU-{index}", name, memory_gb * 10**9, capability) for index in range(count)],
        limits=limits,
        states=[GpuState(uuid=f"GPU-{index}", at=0.0, temperature_c=40) for index in range(count)],
        driver="580.159.04",
        topology=(TOPOLOGY / topology).read_text(),
        p2p=p2p_text(count),
        device_files=count,
    )


def pcie() -> tuple[GpuFacts, NodeSpec]:
    node = NodeSpec(name="box", gpus=8, gpu_model="RTX", capability=120, memory_gb=96, link="pcie", link_gb_s=63, numa_nodes=2)
    return machine(8, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 120, 96, "pcie_x8_two_numa.txt"), node


def h200() -> tuple[GpuFacts, NodeSpec]:
    node = NodeSpec(name="pair", gpus=2, gpu_model="H200", capability=90, memory_gb=141, link="nvlink", link_gb_s=450)
    return machine(2, "NVIDIA H200", 90, 141, "h200_x2.txt"), node


def with_limit(facts: GpuFacts, index: int, **changes: Any) -> GpuFacts:
    limits = [replace(limit, **changes) if limit.index == index else limit for limit in facts.limits]
    return replace(facts, limits=limits)


def states(findings: list[Finding]) -> set[str]:
    return {finding.state for finding in findings}


def one(findings: list[Finding], state: str) -> Finding:
    """The only finding of this state; every one that is not ok has a remedy."""
    assert all(finding.remedy for finding in findings if finding.state != "ok"), findings
    chosen = [finding for finding in findings if finding.state == state]
    assert len(chosen) == 1, findings
    return chosen[0]
