"""From records to a night: which values count, who the night was, what felt different."""

from pathlib import Path

import pytest

from runner.actions.tonight import felt_different, identity_of, limits_text, observed_of, quantities_of, values_of
from runner.engines.gpu_limits import GpuLimits
from runner.records.night import Observed
from runner.records.schema import Command, PhaseRecord
from tests.actions.example import settings_of
from tests.execution.example import small_plan
from tests.records.example import launch_record

KEY = "baseline|decode_c1|tpot_p50_ms"


def test_quantities_are_primary_metrics_times_arms_with_the_baseline(tmp_path: Path) -> None:
    plan = small_plan(phases=("decode_c1", "prefill"))
    found = {(each.arm, each.phase, each.metric) for each in quantities_of(plan, settings_of(tmp_path))}
    arms = ("baseline", "fast", "slow")
    assert found == {(arm, "decode_c1", "tpot_p50_ms") for arm in arms} | {(arm, "prefill", "ttft_p50_ms") for arm in arms}


def test_only_valid_measured_launches_count_in_time_order(tmp_path: Path) -> None:
    quantities = quantities_of(small_plan(), settings_of(tmp_path))
    invalid = PhaseRecord(phase="decode_c1", valid=False, metrics={"tpot_p50_ms": 1.0})
    later = PhaseRecord(phase="decode_c1", valid=True, metrics={"tpot_p50_ms": 21.0})
    records = [
        launch_record(launch="b", started_at=200.0, phases=(later,)),
        launch_record(launch="a"),
        launch_record(launch="c", purpose="prime"),
        launch_record(launch="d", outcome="failed"),
        launch_record(launch="e", phases=(invalid,)),
    ]
    assert values_of(records, quantities) == {KEY: (20.0, 21.0)}


@pytest.mark.parametrize("name", ["engine", "driver", "GPUs", "patches", "model", "workload", "phase length", "GPU limits", "engine build"])
def test_everything_that_could_explain_a_change_is_in_the_identity(tmp_path: Path, name: str) -> None:
    def identity(changed: str) -> dict[str, str]:
        other = changed == name
        plan = small_plan(
            engine_version="0.5.10" if other and name == "engine" else "0.5.9", model="n" if other and name == "model" else "m"
        )
        record = launch_record(command=Command(argv=(), patches={"p": "b" if other and name == "patches" else "a"}))
        if other and name == "engine build":
            record = record.model_copy(update={"engine": record.engine.model_copy(update={"build": "y"})})
        node = {"host": "h", "driver": "590" if other and name == "driver" else "580", "gpus": ["x" if other and name == "GPUs" else "y"]}
        phases = {"decode_c1": {"concurrency": 1, "output": {"value": 64 if other and name == "workload" else 128}}}
        settings = settings_of(
            tmp_path,
            workload={"name": "w", "phases": phases},
            phases=["decode_c1"],
            protocol={"phase_scale": 2.0 if other and name == "phase length" else 1.0},
        )
        return identity_of(plan, settings, [record], [node], "power 450 W" if other and name == "GPU limits" else "power 600 W")

    before, after = identity(""), identity(name)
    assert {key for key in before if before[key] != after[key]} == {name}


def test_what_felt_different_under_load() -> None:
    usual = [Observed(sm_clock_mhz=clock, temperature_c=60, throttle=("sw_power_cap",)) for clock in (2300, 2310, 2290)]
    assert felt_different(usual, Observed(sm_clock_mhz=2280, temperature_c=66, throttle=("sw_power_cap",))) == {}
    changed = felt_different(usual, Observed(sm_clock_mhz=1900, temperature_c=75, throttle=("hw_thermal_slowdown",)))
    assert changed == {
        "SM clock under load": ("2300 MHz", "1900 MHz"),
        "temperature": ("60 C", "75 C"),
        "throttling": ("sw_power_cap", "hw_thermal_slowdown"),
    }
    assert felt_different([], Observed(sm_clock_mhz=1900)) == {}
    assert felt_different(usual, observed_of([])) == {}


def test_limits_in_words() -> None:
    gpus = [GpuLimits(0, power_limit_w=600.0, persistence=True), GpuLimits(1, power_limit_w=450.0, persistence=True)]
    assert limits_text(gpus) == "power 450 W/600 W; persistence on" and limits_text([]) == ""
