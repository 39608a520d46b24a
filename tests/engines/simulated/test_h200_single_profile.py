"""The profile of one H200 says what the committed records say; no figure here is typed."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from runner.analysis.noise import noise_floor
from runner.engines.simulated.in_force import Force
from runner.engines.simulated.noise import launch_factors
from runner.records.schema import LaunchRecord
from runner.spec.engine import Simulation
from tests.docs.published import Published
from tests.engines.simulated.profiles import SIZES, costs_of, simulation_of

ROOT = Path(__file__).resolve().parents[3]
STUDY = Published(ROOT / "experiments" / "h200_single" / "results", "single-x1")
STREAMS = {1: "decode_c1", 16: "decode_c16", 64: "decode_c64"}
EAGER, SLOW = "cuda_graph_batch_sizes=none", "overlap_schedule=off"


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulation_of("simulated_h200_single")


def tpot(arm: str, streams: int) -> float:
    return statistics.median(STUDY.of(arm, STREAMS[streams], "tpot_p50_ms"))


def decode_ms(simulation: Simulation, streams: int, **force: Any) -> float:
    costs = costs_of(simulation, "h200_x1", Force(**{"tp": 1, "graph_sizes": SIZES, **force}))
    return costs.decode_s(streams, streams * 320) * 1e3


def test_starts_and_noise_are_those_of_the_records(simulation: Simulation) -> None:
    load = STUDY.stage("start")
    assert simulation.load_s == pytest.approx(load, rel=0.02)
    assert simulation.stage_share == pytest.approx(
        {name: STUDY.stage(f"start_{name}") / load for name in simulation.stage_share}, abs=0.002
    )
    floor = noise_floor([LaunchRecord.model_validate(record) for record in STUDY.lines("noise.jsonl")])
    spread = {(entry.metric, entry.phase): entry.between_pct for entry in floor.entries}
    assert simulation.decode_noise_pct == pytest.approx(
        {streams: spread["tpot_p50_ms", phase] for streams, phase in STREAMS.items()}, rel=0.03
    )
    assert simulation.prefill_noise_pct == pytest.approx(spread["ttft_p50_ms", "prefill"], rel=0.03)
    assert simulation.level_noise_pct == pytest.approx(
        {arm: STUDY.spread(arm, "decode_c16", "tpot_p50_ms") for arm in (EAGER, SLOW)}, rel=0.03
    )


def test_token_times_lie_where_they_were_measured(simulation: Simulation) -> None:
    assert decode_ms(simulation, 16) == pytest.approx(tpot("baseline", 16), rel=0.01)
    assert decode_ms(simulation, 1) == pytest.approx(tpot("baseline", 1), rel=0.1)
    assert decode_ms(simulation, 64) == pytest.approx(tpot("baseline", 64), rel=0.17)
    lost = decode_ms(simulation, 16, overlap_schedule=False) - decode_ms(simulation, 16)
    assert lost == pytest.approx(tpot(SLOW, 16) - tpot("baseline", 16), rel=0.02)
    assert decode_ms(simulation, 16, graph_sizes=()) == pytest.approx(
        tpot(EAGER, 16), rel=STUDY.spread(EAGER, "decode_c16", "tpot_p50_ms") / 100
    )


def test_a_noisy_level_makes_its_arm_noisy_and_no_other(simulation: Simulation) -> None:
    plain = simulation.model_dump(mode="json")
    for arm, percent in (
        (EAGER, simulation.level_noise_pct[EAGER]),
        (f"page_size=64+{SLOW}", simulation.level_noise_pct[SLOW]),
        ("page_size=64", 0.0),
    ):
        values = [launch_factors(plain, index, arm).decode for index in range(400)]
        assert 100 * statistics.stdev(values) / statistics.mean(values) == pytest.approx(percent, rel=0.12)
