"""Telemetry and fitness: summaries, reasons against a phase, and nothing where there is nothing to watch."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.loadgen import fitness, telemetry
from runner.loadgen.telemetry import Gpu, against, foreign, open_gpus, parse_metrics, process_tree, reasons_of, summarise
from runner.records.schema import ClientFitness, Counts, Telemetry
from runner.spec.protocol import Limits

FIXTURES = Path(__file__).parent.parent / "fixtures" / "loadgen"


def test_a_real_servers_metrics() -> None:
    found = parse_metrics((FIXTURES / "base1.metrics.txt").read_text())
    assert found["num_retracted_reqs"] == 0.0
    assert set(found) <= set(telemetry.GAUGES)
    assert parse_metrics('sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_running_reqs{tp_rank="1"} 4.0\nother 1\nsglang:bad x')[
        "num_running_reqs"
    ] == pytest.approx(4.0)


def test_summary_over_gpus_and_seconds() -> None:
    samples = [
        {
            "t": 1,
            "server": {"num_running_reqs": 8, "num_queue_reqs": 2, "spec_accept_length": 0.0},
            "gpus": [{"sm_mhz": 1980, "temp_c": 60}],
        },
        {
            "t": 2,
            "server": {"num_running_reqs": 10, "num_queue_reqs": 0, "spec_accept_length": 2.5},
            "gpus": [{"sm_mhz": 1960, "temp_c": 65}],
        },
    ]
    summary = summarise(samples)
    assert (summary.sm_clock_mhz_p50, summary.temperature_c_max) == (1970, 65)
    assert (summary.running_requests_mean, summary.queued_requests_max, summary.accept_length) == (9, 2, 2.5)
    assert (summary.power_w_mean, summary.retractions) == (None, None)
    assert against(summary) == []


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (Telemetry(throttle_reasons=("hw_thermal", "sw_power_cap")), "throttled (hw_thermal)"),
        (Telemetry(foreign_processes=2), "2 foreign process"),
    ],
)
def test_throttling_and_strangers_are_reasons(summary: Telemetry, words: str) -> None:
    assert any(words in reason for reason in against(summary))


def test_a_power_cap_is_noted_but_no_reason() -> None:
    assert reasons_of(0x4 | 0x1) == ["sw_power_cap"]
    assert against(Telemetry(throttle_reasons=("sw_power_cap",))) == []


def test_strangers_are_told_from_the_server_only_where_pids_can_be_known() -> None:
    assert foreign([10, 11, 99], {10, 11}) == 1
    assert foreign([10, 11], {10, 11}) == 0
    assert foreign([700, 701], {10, 11}) == 0  # another process namespace
    assert foreign([700], set()) == 0


def test_a_gpu_sample_leaves_out_what_the_card_does_not_offer() -> None:
    class Unsupported(Exception):
        pass

    def refuse(*_: object) -> None:
        raise Unsupported

    nvml = SimpleNamespace(
        NVMLError=Unsupported,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        nvmlDeviceGetClockInfo=lambda _, which: 1900 + which,
        nvmlDeviceGetPowerUsage=lambda _: 250_000,
        nvmlDeviceGetTemperature=refuse,
        nvmlDeviceGetPcieThroughput=lambda _, which: 1_000_000 * (which + 1),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=80e9),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x40,
        nvmlDeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=5), SimpleNamespace(pid=6)],
    )
    sample = Gpu(nvml, "handle").sample({5})
    assert sample == {
        "sm_mhz": 1901,
        "mem_mhz": 1902,
        "power_w": 250.0,
        "tx_gb_s": pytest.approx(1.024),
        "rx_gb_s": pytest.approx(2.048),
        "mem_gb": 80.0,
        "throttle": ["hw_thermal"],
        "foreign": 1,
    }


def field_values(*answers: tuple[int, int]) -> list[SimpleNamespace]:
    return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=count)) for code, count in answers]


class FakeLinks:
    """NVML of a card with links: one pair of (return code, KiB) for sending and receiving a call, then one clock reading each."""

    class NVMLError(Exception):
        pass

    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139

    def __init__(self, *calls: tuple[tuple[int, int], tuple[int, int]]) -> None:
        self.calls = list(calls)

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        assert (handle, fields) == ("handle", [(138, 2**32 - 1), (139, 2**32 - 1)])
        return field_values(*self.calls.pop(0))

    def __getattr__(self, name: str) -> object:
        if name.startswith("NVML_"):
            return 0

        def refuse(*_: object) -> None:
            raise self.NVMLError

        return refuse


def seconds_pass(monkeypatch: pytest.MonkeyPatch, *moments: float) -> None:
    left = list(moments)
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: left.pop(0)))


def test_nvlink_bytes_are_the_difference_between_two_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_pass(monkeypatch, 10.0, 12.0)
    gpu = Gpu(FakeLinks(((0, 5_000_000), (0, 7)), ((0, 25_000_000), (0, 10_000_007))), "handle")
    assert gpu.sample(set()) == {}
    assert gpu.sample(set()) == {"nvlink_tx_gb_s": pytest.approx(10.24), "nvlink_rx_gb_s": pytest.approx(5.12)}


def test_a_reset_counter_gives_no_nvlink_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_pass(monkeypatch, 1.0, 2.0, 3.0)
    gpu = Gpu(FakeLinks(((0, 9_000_000), (0, 0)), ((0, 5), (0, 1_000_000)), ((0, 1_000_005), (0, 1_000_000))), "handle")
    gpu.sample(set())
    assert gpu.sample(set()) == {"nvlink_rx_gb_s": pytest.approx(1.024)}
    assert gpu.sample(set()) == {"nvlink_tx_gb_s": pytest.approx(1.024), "nvlink_rx_gb_s": 0.0}


def test_a_card_without_links_has_no_nvlink_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_pass(monkeypatch, 1.0, 2.0)
    not_supported = 3
    gpu = Gpu(FakeLinks(((not_supported, 0), (not_supported, 0)), ((not_supported, 0), (not_supported, 0))), "handle")
    assert gpu.sample(set()) == gpu.sample(set()) == {}
    summary = summarise([{"gpus": [{"tx_gb_s": 1.0, "rx_gb_s": 2.0}]}, {"gpus": [{"nvlink_tx_gb_s": 3.0}, {"nvlink_tx_gb_s": 5.0}]}])
    assert (summary.nvlink_tx_gb_s, summary.nvlink_rx_gb_s, summary.pcie_tx_gb_s) == (4.0, None, 1.0)


def test_without_gpus_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert open_gpus(("GPU-1",)) == []


def test_process_tree() -> None:
    import os

    assert os.getpid() in process_tree(os.getpid())
    assert process_tree(None) == process_tree(2**22 + 1) == set()


FIT = ClientFitness(
    dispatch_lag_p99_ms=1, loop_stall_max_ms=5, cpu_share=0.2, asked_rate=100, achieved_rate=100.5, littles_law_residual=0.01
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dispatch_lag_p99_ms": 21.0}, "dispatch lag"),
        ({"loop_stall_max_ms": 101.0}, "stood still"),
        ({"cpu_share": 0.95}, "of a core"),
        ({"achieved_rate": 97.0}, "off by 3.0%"),
        ({"littles_law_residual": 0.2}, "Little's law"),
    ],
)
def test_each_limit_of_the_client_has_its_reason(change: dict[str, float], words: str) -> None:
    assert fitness.unfit(FIT, Limits()) == []
    reasons = fitness.unfit(FIT.model_copy(update=change), Limits())
    assert len(reasons) == 1
    assert words in reasons[0]


def test_what_the_server_did_wrong() -> None:
    assert fitness.unserved(Counts(sent=1000, completed=991, failed=9), 0.01, Limits(), False) == []
    assert "11 ended without [DONE] of 1000" in fitness.unserved(Counts(sent=1000, completed=989, truncated=11), None, Limits(), False)[0]
    assert "lost tokens" in fitness.unserved(Counts(sent=10, lost_tokens=1, completed=9), None, Limits(), False)[0]
    assert "cache" in fitness.unserved(Counts(sent=10, completed=10), 0.06, Limits(), False)[0]
    assert fitness.unserved(Counts(sent=10, completed=10), 0.06, Limits(), True) == []
    assert fitness.unserved(Counts(), None, Limits(), False) == ["no request was sent"]


def test_fitness_is_in_milliseconds() -> None:
    made = fitness.fitness([1_000_000] * 99 + [50_000_000], 7_000_000, 0.1, None, None, None, 0.2)
    assert made.loop_stall_max_ms == 7.0
    assert 1.0 <= made.dispatch_lag_p99_ms < 50
    assert fitness.fitness([], 0, 0.0, None, None, None, 0.0).dispatch_lag_p99_ms == 0.0
