"""Soak: waiting while hot, unmeasured load while cold, a deadline, and what the record says of it. NVML and time are fakes."""

from pathlib import Path

import pytest

from runner.engines.gpus import Gpus
from runner.execution.soak import outside, soak
from runner.execution.worker import NodeWorker
from runner.spec.protocol import Protocol
from tests.engines.fake_nvml import FakeGpu, FakeNvml
from tests.execution.launching import launch_job, node_order


class Room(FakeNvml):
    """GPUs that cool by `wait` and warm up under `heat`; the clock is the sum of both. Clocks reach 2430 MHz only above 50 C."""

    def __init__(self, *degrees: float, silent: bool = False) -> None:
        super().__init__([FakeGpu(f"gpu-{index}") for index in range(len(degrees))])
        self.degrees, self.now, self.silent = dict(zip([gpu.uuid for gpu in self.gpus], degrees, strict=True)), 0.0, silent

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, kind: int) -> int:
        if self.silent:
            raise self.NVMLError("Not Supported")
        return round(self.degrees[gpu.uuid])

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        return 2430 if self.degrees[gpu.uuid] > 50 else 1200

    def wait(self, seconds: float) -> None:
        self._pass(seconds, -2.0)

    def heat(self) -> None:
        self._pass(5.0, 1.0)

    def _pass(self, seconds: float, degrees_a_second: float) -> None:
        self.now += seconds
        self.degrees = {name: value + seconds * degrees_a_second for name, value in self.degrees.items()}


def soaked(room: Room, **keys: object):  # type: ignore[no-untyped-def]
    protocol = Protocol(**keys)
    return soak(Gpus(room).states, protocol, room.heat, clock=lambda: room.now, wait=room.wait)


def test_in_the_band_nothing_is_waited_for() -> None:
    done = soaked(Room(60, 62), soak_temperature_c=(55, 70))
    assert (done.reached, done.seconds, done.heated, done.reason) == (True, 0, 0, "")
    assert done.temperature_c == (60, 62)


def test_hot_gpus_cool_without_load() -> None:
    room = Room(60, 80)
    done = soaked(room, soak_temperature_c=(40, 70))
    assert (done.reached, done.heated) == (True, 0)
    assert done.seconds == pytest.approx(5.0)


def test_cold_gpus_are_warmed_by_load() -> None:
    done = soaked(Room(44, 46), soak_temperature_c=(55, 70))
    assert (done.reached, done.heated, done.seconds) == (True, 3, 15.0)


def test_clocks_settle_under_load() -> None:
    done = soaked(Room(44), soak_clock_mhz=(2000, 2500))
    assert (done.reached, done.heated, done.sm_clock_mhz) == (True, 2, (2430,))


def test_at_the_deadline_the_load_begins_and_the_reason_is_kept() -> None:
    done = soaked(Room(20), soak_temperature_c=(60, 70), soak_deadline_s=12)
    assert (done.reached, done.heated, done.seconds) == (False, 3, 15.0)
    assert done.reason == "temperature 35 to 35 C on 1 of 1 GPUs"


def test_what_gpus_do_not_say_is_no_band_reached() -> None:
    assert outside((), Protocol(soak_temperature_c=(1, 2))) == ("no GPU is visible", False)
    done = soaked(Room(60, silent=True), soak_temperature_c=(55, 70), soak_deadline_s=1)
    assert (done.reached, done.reason) == (False, "the GPUs do not say their temperature")


def test_a_launch_soaks_before_its_load_and_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(44)
    monkeypatch.setattr("runner.execution.launch.Gpus.visible", lambda: _Warming(room))
    job = launch_job(tmp_path)
    job = job.model_copy(update={"protocol": job.protocol.model_copy(update={"soak_temperature_c": (48.0, 70.0)})})
    worker = NodeWorker(node_order(tmp_path / "lock"))
    try:
        events = list(worker.launch(job))
    finally:
        worker.close()
    record = events[-1].record
    assert record is not None
    assert record.outcome == "ok"
    assert record.soak is not None
    assert (record.soak.reached, record.soak.heated, record.soak.temperature_c) == (True, 1, (49,))
    assert [phase.phase for phase in record.phases] == ["decode_c1"], "the load that heats is no phase"
    stages = [event.stage for event in events if event.kind == "stage"]
    assert stages.index("soak") < stages.index("phase decode_c1")
    assert record.stages["soak"] > 0


class _Warming(Gpus):
    """Every look but the first finds the GPUs as after one more load."""

    def __init__(self, room: Room) -> None:
        super().__init__(room)
        self._room, self._looks = room, 0

    def states(self):  # type: ignore[no-untyped-def]
        self._looks += 1
        if self._looks > 1:
            self._room.heat()
        return super().states()
