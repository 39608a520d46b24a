"""GPUs are free, or somebody is named; against a stand-in for NVML."""

import threading
import time

import pytest

from runner.engines import gpus as gpus_module
from runner.engines.gpus import Gpus, reasons_of, visible_count
from runner.errors import NodeBusy
from tests.engines.fake_nvml import FakeGpu, FakeNvml

FOREIGN = 2**22 + 5


def node(count: int = 8) -> list[FakeGpu]:
    return [FakeGpu(f"GPU-{letter}{letter}{letter}") for letter in "abcdefgh"[:count]]


def test_no_driver_is_an_empty_list_and_always_free() -> None:
    none = Gpus(None)
    assert not none.present and none.uuids == () and none.states() == [] and none.foreign() == []
    assert none.wait_free((), (), 0.0)
    none.demand_free()


def test_this_machine_answers_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_count() == len(Gpus.visible().devices)


def test_devices() -> None:
    first = Gpus(FakeNvml(node())).devices[0]
    assert (first.index, first.uuid, first.capability, first.memory_bytes >> 30) == (0, "GPU-aaa", 120, 96)
    assert first.name.startswith("NVIDIA RTX PRO 6000") and first.pci == "00000000:01:00.0"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, "abcdefgh"),
        ("all", "abcdefgh"),
        ("", ""),
        ("-1", ""),
        ("3,1", "db"),
        ("0,99,1", "a"),  # CUDA stops at the first that does not exist
        ("GPU-ccc", "c"),
        ("GPU-d, GPU-e", "de"),
    ],
)
def test_visible_devices_as_cuda_reads_them(visible: str | None, seen: str) -> None:
    assert "".join(uuid[-1] for uuid in Gpus(FakeNvml(node()), visible).uuids) == seen


def test_a_foreign_process_makes_the_launch_fail_by_name() -> None:
    cards = node(2)
    cards[1].processes = [(FOREIGN, 20 << 30)]
    cards[1].used = 20 << 30
    with pytest.raises(NodeBusy, match=rf"pid {FOREIGN} \(/usr/bin/somebody-elses-trainer, 20.0 GiB\) on GPU 1 .*not ours to end"):
        Gpus(FakeNvml(cards)).demand_free(timeout=0.2)


def test_it_waits_until_the_foreign_process_is_gone() -> None:
    cards = node(2)
    cards[0].processes, cards[0].used = [(FOREIGN, None)], 5 << 30
    watched = FakeNvml(cards)

    def leave() -> None:
        while watched.asked < 4:
            time.sleep(0.01)
        cards[0].processes, cards[0].used = [], 0

    leaver = threading.Thread(target=leave)
    leaver.start()
    Gpus(watched).demand_free(timeout=5)
    leaver.join()
    assert watched.asked >= 4


def test_own_processes_do_not_count() -> None:
    cards = node(1)
    cards[0].processes = [(FOREIGN, 1 << 30)]
    seen = Gpus(FakeNvml(cards))
    assert seen.wait_free(seen.uuids, {FOREIGN}, 0.0) and not seen.wait_free(seen.uuids, (), 0.0)
    assert [each.pid for each in seen.foreign()] == [FOREIGN] and seen.foreign({FOREIGN}) == []


@pytest.mark.parametrize("old", [False, True], ids=["driver's reserve left out", "old driver"])
def test_memory_without_a_process_is_not_free(old: bool) -> None:
    """A process of another container is seen by its memory alone; what the driver reserves for itself is no use."""
    cards = node(1)
    seen = Gpus(FakeNvml(cards, old=old))
    assert seen.wait_free(seen.uuids, (), 0.0)
    cards[0].used = 3 << 30
    with pytest.raises(NodeBusy, match=r"3\.\d GiB in use on GPU 0 .*cannot be seen from here"):
        seen.demand_free(timeout=0.0)


def test_only_the_gpus_asked_for_count() -> None:
    cards = node(2)
    cards[1].processes = [(FOREIGN, 1 << 30)]
    seen = Gpus(FakeNvml(cards))
    assert seen.wait_free(["GPU-aaa"], (), 0.0) and not seen.wait_free(["GPU-bbb"], (), 0.0)


@pytest.mark.parametrize("old", [False, True])
def test_state(old: bool) -> None:
    cards = node(1)
    cards[0].reasons, cards[0].used = 0x1 | 0x4 | 0x40, 7 << 30
    (state,) = Gpus(FakeNvml(cards, old=old)).states()
    assert (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c) == (2430, 14001, 412.5, 71)
    assert state.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert (state.pcie_tx, state.pcie_rx, state.pcie_generation, state.pcie_width) == (1051 * 1024, 596 * 1024, 5, 16)
    assert state.nvlink_tx is None and state.utilization_pct is None, "what a GPU does not offer is null"
    assert state.memory_used is not None and state.memory_used >= 7 << 30


def test_nvlink_counters_are_bytes() -> None:
    cards = [FakeGpu("GPU-a", nvlink=True)]
    (state,) = Gpus(FakeNvml(cards)).states()
    assert state.nvlink_tx == state.nvlink_rx == 1000 * 1024


def test_reasons_that_do_no_harm_are_left_out() -> None:
    assert reasons_of(0x1 | 0x2 | 0x10 | 0x100) == () and reasons_of(0x8 | 0x80) == ("hw_slowdown", "hw_power_brake_slowdown")


def test_count_honours_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus_module, "_load_nvml", lambda: FakeNvml(node()))
    for value, count in (("0,1", 2), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert visible_count() == count
