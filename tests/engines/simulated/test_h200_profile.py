"""The H200 profile of the simulated engine says what the committed records say; no figure here is typed."""

import pytest

from runner.engines.simulated.cost import CostModel
from runner.engines.simulated.in_force import Force
from runner.engines.simulated.noise import StepNoise, launch_factors
from runner.spec.engine import Simulation
from tests.engines.simulated.h200_records import baseline_ms, expected, lines, metric, served
from tests.engines.simulated.profiles import SIZES, costs_of, simulation_of


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulation_of("simulated_h200")


def costs(simulation: Simulation, custom: bool) -> CostModel:
    return costs_of(simulation, "h200_x2", Force(tp=2, graph_sizes=SIZES, custom=custom))


def test_starts_noise_and_costs_are_those_of_the_records(simulation: Simulation) -> None:
    wanted = expected()
    assert simulation.load_s == pytest.approx(wanted["load_s"], rel=0.02)
    for name in ("stage_share", "decode_noise_pct"):
        assert getattr(simulation, name) == pytest.approx(wanted[name], rel=0.03)
    assert simulation.prefill_noise_pct == pytest.approx(wanted["prefill_noise_pct"], rel=0.03)
    assert simulation.cold_stall_s == pytest.approx(wanted["cold_stall_s"], rel=0.02)
    assert {key: simulation.compute[key] for key in wanted["compute"]} == pytest.approx(wanted["compute"], rel=0.01)


def test_token_times_lie_where_they_were_measured(simulation: Simulation) -> None:
    """16 streams decide and are right; the cost model's two terms cannot bend as the measured curve does."""
    seen, model = baseline_ms("tpot_p50_ms"), costs(simulation, custom=True)
    times = {rows: model.decode_s(rows, rows * 320) * 1e3 for rows in seen}
    assert times[16] == pytest.approx(seen[16], rel=0.02)
    assert times[1] == pytest.approx(seen[1], rel=0.25)
    assert times[64] == pytest.approx(seen[64], rel=0.2)
    assert model.prefill_s(256, 0) * 1e3 == pytest.approx(baseline_ms("ttft_p50_ms")[1], rel=0.03)


def test_nccl_instead_of_custom_all_reduce_costs_what_it_cost(simulation: Simulation) -> None:
    arms = served(lines("launches.jsonl"))
    tpot = {
        name: [metric(each, "decode_c16", "tpot_p50_ms") for each in arms if each["arm"] == name]
        for name in ("baseline", "custom_all_reduce=off")
    }
    measured = sum(tpot["custom_all_reduce=off"]) / len(tpot["custom_all_reduce=off"]) / (sum(tpot["baseline"]) / len(tpot["baseline"])) - 1
    mine = costs(simulation, custom=False).decode_s(16, 16 * 320) / costs(simulation, custom=True).decode_s(16, 16 * 320) - 1
    assert mine == pytest.approx(measured, abs=0.005)


def test_the_first_launch_stalls_and_no_other(simulation: Simulation) -> None:
    plain = simulation.model_dump(mode="json")
    first, second = (StepNoise(launch_factors(plain, index, "baseline"), 0.0, 0.0, "s") for index in (0, 1))
    assert [first.stall_s(4096), first.stall_s(4096), first.stall_s(256)] == [simulation.cold_stall_s, 0.0, simulation.cold_stall_s]
    assert second.stall_s(4096) == 0.0


def test_the_spread_of_many_launches_is_the_loads_own(simulation: Simulation) -> None:
    plain = simulation.model_dump(mode="json")
    for rows, percent in simulation.decode_noise_pct.items():
        values = [launch_factors(plain, index, "baseline").decode_at(rows) for index in range(400)]
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5 / mean
        assert 100 * spread == pytest.approx(percent, rel=0.12)
    assert launch_factors(plain, 3, "a").decode_at(17) == launch_factors(plain, 3, "a").decode_at(16), "the nearest load answers"
