"""The cost model: its anchors, its monotony, and what each flag is worth where."""

from typing import Any

import pytest

from runner.engines.simulated.cost import CostModel, cost_model, unknown_overrides
from runner.engines.simulated.force import GRAPH_SIZES
from runner.engines.simulated.in_force import Force
from runner.engines.simulated.shapes import Model, Node
from runner.spec.node import LinkCost
from tests.engines.simulated.support import GLM5, PCIE_NODE

GLM = Model.of(GLM5.model_dump(mode="json"))
PCIE = Node.of(PCIE_NODE.model_dump(mode="json"))
PLAIN = Force(tp=8, graph_sizes=GRAPH_SIZES)


def costs(force: Force = PLAIN, overrides: dict[str, float] | None = None, node: Node = PCIE, model: Model = GLM) -> CostModel:
    return cost_model(model, node, force, overrides or {}, {}, {})


def test_glm5_at_tp8_takes_about_20_ms_a_token() -> None:
    assert costs().decode_s(1, 300) == pytest.approx(0.020, rel=0.05)


def test_nccl_takes_205_us_for_12_kib_launched_one_by_one() -> None:
    assert costs().all_reduce_us("nccl", 12288) == pytest.approx(205, rel=0.01)


def test_the_ring_term_is_that_of_the_design() -> None:
    node = Node.of(PCIE_NODE.model_copy(update={"all_reduce": {"nccl_graph": LinkCost(alpha_us=0, gb_s=63)}}).model_dump(mode="json"))
    model = costs(node=node)
    for tokens, microseconds in ((1, 0.313), (128, 40.05), (1024, 320.4)):
        assert model.all_reduce_us("nccl_graph", tokens * 5632 * 2) == pytest.approx(microseconds, rel=0.002)


def test_pcie_ipc_takes_about_as_much_away_as_upstream_measured() -> None:
    before, after = costs().decode_s(1, 8192), costs(Force(tp=8, graph_sizes=GRAPH_SIZES, pcie_ipc=True)).decode_s(1, 8192)
    assert before - after == pytest.approx(0.00752, rel=0.05)


def test_max_bytes_matter_only_where_a_batch_lies_between() -> None:
    plain = costs()
    small, middle, large = (costs(Force(tp=8, graph_sizes=GRAPH_SIZES, mscclpp_legacy_bytes=size)) for size in (1 << 18, 1 << 20, 1 << 22))
    for batch in (1, 16):
        assert small.decode_s(batch, 300 * batch) == large.decode_s(batch, 300 * batch) < plain.decode_s(batch, 300 * batch)
    assert small.decode_s(64, 1000) == plain.decode_s(64, 1000) > middle.decode_s(64, 1000) == large.decode_s(64, 1000)
    assert middle.decode_s(128, 1000) == plain.decode_s(128, 1000) > large.decode_s(128, 1000)
    assert large.prefill_s(256, 0) == plain.prefill_s(256, 0), "legacy mscclpp lives in decode graphs only"


def test_without_a_graph_legacy_mscclpp_is_inert() -> None:
    eager = costs(Force(tp=8))
    assert costs(Force(tp=8, mscclpp_legacy_bytes=1 << 22)).decode_s(1, 10) == eager.decode_s(1, 10)
    assert eager.decode_s(1, 10) > 2 * costs().decode_s(1, 10)


def test_fusion_helps_decode_and_short_prefills_not_long_ones() -> None:
    fused = costs(Force(tp=8, graph_sizes=GRAPH_SIZES, fusion=True))
    assert fused.decode_s(1, 10) < costs().decode_s(1, 10)
    assert fused.prefill_s(256, 0) < costs().prefill_s(256, 0)
    assert fused.prefill_s(4096, 0) == costs().prefill_s(4096, 0)


def test_more_work_takes_longer() -> None:
    model = costs()
    decode = [model.decode_s(batch, batch * 300) for batch in (1, 2, 8, 32, 128, 512)]
    prefill = [model.prefill_s(tokens, 0) for tokens in (64, 256, 1024, 4096, 8192)]
    assert decode == sorted(decode)
    assert prefill == sorted(prefill)
    assert decode[-1] < 512 * decode[0], "batching pays"


def test_overrides_and_effects() -> None:
    slow = costs(overrides={"alpha_us.nccl_graph": 153.0})
    assert slow.decode_s(1, 0) - costs().decode_s(1, 0) == pytest.approx(156 * 100e-6, rel=1e-6)
    better = cost_model(GLM, PCIE, PLAIN, {}, {"flag=on": {"tpot_p50_ms": 5.0}, "flag=off": {"ttft_p50_ms": 50.0}}, {"flag": "on"})
    assert better.decode_s(1, 0) == pytest.approx(0.95 * costs().decode_s(1, 0))
    assert better.prefill_s(256, 0) == costs().prefill_s(256, 0)
    assert "choices" in unknown_overrides({"nonsense": 1.0})
    assert not unknown_overrides({"gb_s.nccl": 40.0, "step_us": 1.0, "token_flip_share": 0.0})


def test_a_batch_runs_as_the_next_captured_size() -> None:
    force = Force(tp=8, graph_sizes=(1, 16, 64))
    assert [force.padded(batch) for batch in (1, 2, 16, 17, 64, 65)] == [1, 16, 16, 64, 64, 65]
    sent = costs(force)
    assert sent.decode_s(17, 0) > costs().decode_s(17, 0), "more rows go over the wire"
    assert sent.decode_s(65, 0) > 2 * sent.decode_s(64, 0) - sent.decode_s(1, 0), "beyond the last size there is no graph"


def test_forced_nccl_choices_move_latency_and_bandwidth() -> None:
    def us(size: int, **forced: Any) -> float:
        return costs(Force(tp=8, graph_sizes=GRAPH_SIZES, **forced)).all_reduce_us("nccl_graph", size)

    small, large = 12288, 50_000_000
    assert us(small, nccl_algorithm="tree") < us(small) < us(small, nccl_protocol="simple")
    assert us(large, nccl_protocol="ll") > 1.5 * us(large)
    assert us(large, nccl_channels=2) > us(large) == us(large, nccl_channels=16)
    assert us(small, nccl_algorithm="ring") == us(small)


def test_without_overlapped_scheduling_every_decode_step_is_longer() -> None:
    assert costs(Force(tp=8, graph_sizes=GRAPH_SIZES, overlap_schedule=False)).decode_s(1, 0) - costs().decode_s(1, 0) == pytest.approx(
        0.0011
    )
