"""GPUs, links and clocks of two machines: fit as they are, and each fault named."""

from dataclasses import replace

import pytest

from runner.actions.checks.clocks import check_clocks
from runner.actions.checks.facts import BusFacts, GpuFacts, acs_redirects
from runner.actions.checks.finding import Finding
from runner.actions.checks.gpu import check_driver, check_gpus, check_occupied
from runner.actions.checks.link import check_bus, check_pcie, check_peer_access, check_topology
from runner.engines.gpus import GpuState
from runner.spec.node import NodeSpec
from tests.actions.checks.example import h200, one, p2p_text, pcie, states, with_limit

QUIET_BUS = BusFacts(acs_redirect=())


def everything(facts: GpuFacts, node: NodeSpec) -> list[Finding]:
    found = [*check_gpus(facts, node, "sglang"), *check_driver(facts), *check_topology(facts, node), *check_pcie(facts, node)]
    return [*found, *check_peer_access(facts), *check_bus(QUIET_BUS, facts), *check_clocks(facts), *check_occupied(facts)]


@pytest.mark.parametrize("machine", [pcie, h200], ids=["pcie_two_numa", "h200_pair"])
def test_a_fit_machine_is_fit(machine: object) -> None:
    facts, node = machine()  # type: ignore[operator]
    assert states(everything(facts, node)) == {"ok"}


def test_the_two_numa_halves_are_told() -> None:
    facts, node = pcie()
    text = " ".join(finding.text for finding in check_topology(facts, node))
    assert "4 on node 0, 4 on node 1" in text and "16 of 28 pairs cross" in text and "NUMA node 1: GPU4" in text


def test_the_wrong_node_file_fails_by_link_and_by_capability() -> None:
    facts, _ = h200()
    _, wrong = pcie()
    wrong = wrong.model_copy(update={"gpus": 2})
    assert "link=pcie" in one(check_topology(facts, wrong), "fail").text
    assert "SM90" in one(check_gpus(facts, wrong, "sglang"), "fail").text


def test_too_few_gpus_fail_and_too_many_warn() -> None:
    facts, node = pcie()
    assert "7 visible" in one(check_gpus(replace(facts, devices=facts.devices[:7]), node, "sglang"), "fail").text
    assert "8 visible" in one(check_gpus(facts, node.model_copy(update={"gpus": 4}), "sglang"), "warn").text


def test_without_gpus_it_says_what_it_cannot_know() -> None:
    nothing, node = GpuFacts(), pcie()[1]
    unknown = one(check_gpus(nothing, node, "simulated"), "warn")
    assert all(word in unknown.text for word in ("driver", "topology", "P2P", "SIMULATED"))
    assert one(check_gpus(nothing, node, "sglang"), "fail").remedy
    assert states(check_gpus(nothing, node.model_copy(update={"gpus": 0}), "sglang")) == {"ok"}
    assert "NVML" in one(check_gpus(GpuFacts(device_files=8), node, "simulated"), "fail").text
    rest = [check_driver(nothing), check_topology(nothing, node), check_pcie(nothing, node), check_peer_access(nothing)]
    assert [*rest, check_clocks(nothing), check_occupied(nothing), check_bus(QUIET_BUS, nothing)] == [[]] * 7


def test_a_card_with_fewer_lanes_fails_but_an_idle_generation_does_not() -> None:
    facts, node = pcie()
    assert "GPU 3 runs x8 of x16" in one(check_pcie(with_limit(facts, 3, pcie_width=8), node), "fail").text
    idle = check_pcie(with_limit(facts, 3, pcie_generation=1), node)
    assert states(idle) == {"ok"} and "look again under load" in idle[0].text


def test_a_link_faster_than_its_slot_is_doubted() -> None:
    facts, node = pcie()
    for index in range(8):
        facts = with_limit(facts, index, pcie_generation=4, pcie_generation_max=4)
    assert one(check_pcie(facts, node), "warn").remedy == "set node.link_gb_s=32"


def test_peer_access() -> None:
    facts, _ = pcie()
    assert "56 ordered pairs" in check_peer_access(facts)[0].text
    assert "56 pairs CNS (the chipset" in one(check_peer_access(replace(facts, p2p=p2p_text(8, "CNS"))), "warn").text
    assert one(check_peer_access(replace(facts, p2p=None)), "warn").remedy
    assert one(check_peer_access(replace(facts, p2p="garbage")), "warn").remedy


@pytest.mark.parametrize(
    ("bus", "word"),
    [
        (BusFacts(iommu_units=2, group_types=("DMA-FQ",), acs_redirect=()), "IOMMU"),
        (BusFacts(acs_redirect=("0000:40:01.1",)), "ACS"),
        (BusFacts(acs_redirect=None), "ACS"),
    ],
)
def test_what_slows_peer_traffic_on_the_bus(bus: BusFacts, word: str) -> None:
    assert one(check_bus(bus, pcie()[0]), "warn").check == word


def test_an_iommu_that_passes_through_is_fine() -> None:
    bus = BusFacts(iommu_units=2, group_types=("identity",), command_line="quiet iommu=pt", acs_redirect=())
    assert states(check_bus(bus, pcie()[0])) == {"ok"}


def configuration(control: int, capability: int = 0x000D) -> bytes:
    """4 KiB of PCI configuration: one capability at 0x100 that leads to ACS (or another) at 0x148."""
    data = bytearray(4096)
    data[0x100:0x104] = (0x148 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    data[0x148:0x14C] = (1 << 16 | capability).to_bytes(4, "little")
    data[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(data)


def test_acs_is_read_from_the_configuration_space() -> None:
    assert acs_redirects(configuration(0b0001)) is False
    assert acs_redirects(configuration(0b0100)) is True
    assert acs_redirects(configuration(0b1000)) is True
    assert acs_redirects(configuration(0b1100, capability=0x0010)) is None
    assert acs_redirects(b"\0" * 64) is None
    assert acs_redirects(b"\xff" * 4096) is None


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"power_limit_w": 450.0}, "power limit"),
        ({"persistence": False}, "persistence"),
        ({"sm_clock_set_mhz": 1800}, "clocks"),
    ],
)
def test_one_gpu_that_is_set_differently_is_named(changes: dict[str, object], check: str) -> None:
    assert one(check_clocks(with_limit(pcie()[0], 5, **changes)), "warn").check == check


def test_a_lowered_power_limit_of_all_is_a_warning() -> None:
    facts, _ = h200()
    for index in range(2):
        facts = with_limit(facts, index, power_limit_w=400.0)
    assert "400 W, the default is 600 W" in one(check_clocks(facts), "warn").text


def test_throttling_occupied_gpus_errors_and_mig() -> None:
    facts, node = h200()
    hot = replace(facts, states=[GpuState(uuid="GPU-0", at=0, throttle_reasons=("hw_thermal_slowdown",))])
    assert "hw_thermal" in one(check_clocks(hot), "warn").text
    taken = replace(facts, occupied=["pid 4711 (python, 3.0 GiB) on GPU 1 (NVIDIA H200)"])
    assert "4711" in one(check_occupied(taken), "fail").text
    broken = replace(facts, states=[GpuState(uuid="GPU-1", at=0, ecc_uncorrected=2)])
    assert one(check_gpus(broken, node, "sglang"), "fail").check == "gpu errors"
    assert one(check_gpus(with_limit(facts, 0, mig=True), node, "sglang"), "fail").check == "MIG"


def test_unreadable_topology_is_said() -> None:
    facts, node = pcie()
    assert one(check_topology(replace(facts, topology=None), node), "warn").remedy
    assert "cannot be read" in one(check_topology(replace(facts, topology="no matrix"), node), "warn").text
