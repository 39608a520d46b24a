"""The communication budget: the design's check values, the fit, and what a bound may do."""

import numpy as np
import pytest

from runner.analysis.communication import algorithm_us, budget, budget_text, fit_link, may_leave_out, message_bytes
from runner.spec.model import ModelSpec
from runner.spec.node import LinkCost, NodeSpec

MODEL = ModelSpec(name="m", hidden_size=5632, num_layers=78)
NODE = NodeSpec(name="n", gpus=8, gpu_model="g", capability=120, memory_gb=96, link="pcie", link_gb_s=63)
COSTS = {
    "nccl": LinkCost(alpha_us=205 - 1.75 * 12288 / 40e3, gb_s=40, source="published"),
    "pcie_ipc": LinkCost(alpha_us=5.3 - 1.75 * 12288 / 40e3, gb_s=40, source="published"),
}


@pytest.mark.parametrize(
    ("tokens", "size", "us", "ms"), [(1, 11_264, 0.313, 0.049), (128, 1_441_792, 40.05, 6.25), (1024, 11_534_336, 320.4, 49.98)]
)
def test_check_values(tokens: int, size: int, us: float, ms: float) -> None:
    row = next(row for row in budget(MODEL, NODE)["rows"] if row["tokens"] == tokens and row["algorithm"] == "bandwidth_only")
    assert row["bytes"] == size
    assert row["us"] == pytest.approx(us, rel=1e-3)
    assert row["ms_per_pass"] == pytest.approx(ms, rel=5e-3)
    assert set(row) == {"tokens", "bytes", "algorithm", "us", "ms_per_pass", "share_of_tpot", "bound_pct"}


def test_glm5_sends_12288_bytes_a_token() -> None:
    assert message_bytes(ModelSpec(name="glm5", hidden_size=6144, num_layers=78), 1) == 12_288


def test_latency_turns_the_conclusion_around() -> None:
    glm = MODEL.model_copy(update={"hidden_size": 6144})
    node = NODE.model_copy(update={"all_reduce": COSTS})
    result = budget(glm, node, {"decode_c1": 1}, pass_ms={"decode_c1": 60.0})
    by_name = {row["algorithm"]: row for row in result["rows"] if row["tokens"] == 1}
    assert by_name["nccl"]["ms_per_pass"] == pytest.approx(156 * 0.205, rel=1e-3)
    assert by_name["bandwidth_only"]["ms_per_pass"] < 0.06
    assert result["phases"][0]["bound_pct"] == pytest.approx(100 * 156 * 0.205 / 60, rel=1e-3)
    text = budget_text(result)
    assert "Latency decides" in text
    assert "at most 53.3 %" in text
    assert "may not leave an arm out" in text


def test_the_bound_is_that_of_the_algorithm_in_use_and_never_over_the_whole_pass() -> None:
    node = NODE.model_copy(update={"all_reduce": COSTS})
    slow = budget(MODEL, node, {"d": 1}, pass_ms={"d": 40.0})["phases"][0]
    fast = budget(MODEL, node, {"d": 1}, pass_ms={"d": 40.0}, in_use="pcie_ipc")["phases"][0]
    assert slow["algorithm"] == "nccl"
    assert fast["bound_pct"] < slow["bound_pct"]
    assert budget(MODEL, node, {"d": 1}, pass_ms={"d": 1.0})["phases"][0]["bound_pct"] == 100


def test_one_rank_sends_nothing() -> None:
    assert all(row["us"] == 0 for row in budget(MODEL, NODE, ranks=1)["rows"])


def test_without_a_measured_pass_there_is_no_bound() -> None:
    result = budget(MODEL, NODE, {"decode_c16": 16})
    assert all(row["bound_pct"] is None for row in result["rows"])
    assert "no bound" in budget_text(result)
    assert {row["tokens"] for row in result["rows"]} == {1, 16, 128, 1024}


@pytest.mark.parametrize(
    ("bound", "measured", "fusion", "expected"),
    [(0.2, True, False, True), (0.2, False, False, False), (0.2, True, True, False), (2.0, True, False, False), (None, True, False, False)],
)
def test_only_a_bound_measured_here_leaves_out_and_never_a_fusion_arm(
    bound: float | None, measured: bool, fusion: bool, expected: bool
) -> None:
    assert may_leave_out(bound, 1.0, measured_here=measured, fusion=fusion) is expected


def test_fit_finds_alpha_and_bandwidth_in_spite_of_outliers() -> None:
    rng = np.random.default_rng(3)
    truth = LinkCost(alpha_us=53, gb_s=45)
    sizes = np.repeat(2.0 ** np.arange(12, 27), 5)
    us = np.array([algorithm_us(truth, size, 8) for size in sizes]) * (1 + 0.02 * rng.standard_normal(len(sizes)))
    us[::17] *= 6
    fitted = fit_link(sizes, us, 8)
    assert fitted.alpha_us == pytest.approx(53, rel=0.05)
    assert fitted.gb_s == pytest.approx(45, rel=0.05)


def test_fit_keeps_to_the_physical_side() -> None:
    flat = fit_link([4096, 8192, 16384], [9.0, 8.0, 7.0], 2)
    assert flat.alpha_us == pytest.approx(8, rel=0.15)
    assert flat.gb_s == 1e6
    steep = fit_link([4096, 8192, 16384], [1.0, 3.0, 9.0], 2)
    assert steep.alpha_us == 0


@pytest.mark.parametrize(("sizes", "ranks"), [([4096, 4096], 8), ([4096, 8192], 1)])
def test_fit_refuses_what_cannot_be_fitted(sizes: list[float], ranks: int) -> None:
    with pytest.raises(ValueError, match="two"):
        fit_link(sizes, [1.0, 2.0], ranks)
