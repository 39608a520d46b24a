"""Cost: learned where there is something to learn from, assumed and said so otherwise; and what a budget can resolve."""

from collections.abc import Callable

import pytest
from scipy import stats

from runner.planning.learned import learned_from_file
from runner.planning.resolvable import could_see_pct, t_quantile
from runner.records.plan import Plan

PlanOf = Callable[..., Plan]


def floor(between: float) -> dict[str, object]:
    phases = [*((f"decode_c{streams}", "tpot_p50_ms") for streams in (1, 16, 64, 128)), ("prefill", "ttft_p50_ms")]
    return {"entries": [{"phase": phase, "metric": metric, "between_pct": between, "df": 8} for phase, metric in phases]}


@pytest.mark.parametrize("freedom", [3, 4, 6, 10, 30, 200])
@pytest.mark.parametrize("probability", [0.8, 0.9, 0.95, 0.975])
def test_quantiles_of_t(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=0.02)


def test_more_blocks_and_less_noise_show_smaller_effects() -> None:
    assert could_see_pct(0.5, 6, 4, 4, 0.05) < could_see_pct(0.5, 3, 4, 4, 0.05) < could_see_pct(1.0, 3, 4, 4, 0.05)
    assert could_see_pct(0.5, 1, 4, 4, 0.05) == float("inf")


def test_costs_are_learned_from_the_node(plan_of: PlanOf) -> None:
    assumed = plan_of("smoke", "0.5.9")
    assert "nothing learned" in assumed.estimate.source
    entries = [
        {"total_s": 60.0 + extra, "phases_s": 10.0, "cold": cold, "engine_build": "b"}
        for extra, cold in ((140.0, True), (0.0, False), (2.0, False), (4.0, False))
    ]
    learned = plan_of("smoke", "0.5.9", learned={"launches": entries}).estimate
    assert (learned.launch_cold_s, learned.launch_warm_s) == (190.0, 52.0)
    assert learned.source == "learned from 4 launches on this node"
    assert learned.wall_minutes > assumed.estimate.wall_minutes


def test_an_incomplete_history_teaches_nothing_wrong() -> None:
    assert learned_from_file({"launches": [{"total_s": 5.0}, "text"]}).launches == 0
    mine = learned_from_file(
        {"launches": [{"total_s": 9.0, "phases_s": 1.0, "engine_build": "a"}, {"total_s": 99.0, "phases_s": 1.0, "engine_build": "b"}]},
        engine_build="a",
    )
    assert (mine.warm_s, mine.launches) == (8.0, 1)


def test_gpu_minutes_count_the_gpus_and_the_launches_that_end_early(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.9", "protocol=quick")
    cost = plan.estimate
    assert cost.estimate == pytest.approx(cost.wall_minutes * 8, rel=0.01)
    assert cost.launches == 8 * 3 + 8 + 2
    assert cost.low < cost.estimate < cost.high


def test_without_a_noise_floor_the_plan_says_so(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.9")
    assert plan.not_resolvable == ()
    assert any("no noise floor for this node" in note for note in plan.notes)


def test_what_the_blocks_cannot_resolve_is_named(plan_of: PlanOf) -> None:
    assert plan_of("overlap_grid", "0.5.15.post1", noise=floor(0.1)).not_resolvable == ()
    noisy = plan_of("overlap_grid", "0.5.15.post1", noise=floor(3.0))
    assert len(noisy.not_resolvable) == 5
    assert any(
        text.startswith("decode_c1 tpot_p50_ms: 8 blocks show effects from") and "margin is 1 %" in text for text in noisy.not_resolvable
    )
    partial = plan_of("overlap_grid", "0.5.15.post1", noise={"entries": floor(0.1)["entries"][:1]})  # type: ignore[index]
    assert any("does not hold: decode_c16" in note for note in partial.notes)


def test_a_budget_below_three_blocks_resolves_nothing(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.15.post1", "protocol.gpu_minutes=1", noise=floor(0.1))
    assert len(plan.not_resolvable) == 1
    assert "every hypothesis: 1 GPU minutes pay for 0 of 3 blocks of 8 arms" in plan.not_resolvable[0]
