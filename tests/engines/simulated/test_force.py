"""What each version makes of the flags: the table of the release wheels, cell by cell."""

from typing import Any

import pytest

from runner.engines.simulated.force import decide
from runner.engines.simulated.in_force import Decision
from runner.engines.simulated.mscclpp import max_bytes_of
from runner.engines.simulated.options import parse, words_of
from runner.engines.simulated.shapes import Model, Node, version_of
from tests.engines.simulated.support import BASE, GLM5, H200_NODE, MOE, PCIE_NODE

VERSIONS = ("0.5.9", "0.5.10", "0.5.11", "0.5.13.post1", "0.5.14", "0.5.15.post1", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
FUSION: dict[str, Any] = {"enable-flashinfer-allreduce-fusion": True}


def decided(
    version: str,
    options: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    patches: tuple[str, ...] = (),
    h200: bool = False,
    modules: dict[str, bool] | None = None,
) -> Decision:
    node, model, base = (H200_NODE, MOE, {"tp-size": 2}) if h200 else (PCIE_NODE, GLM5, BASE)
    args = parse(words_of({**base, **(options or {})}), version_of(version))
    shapes = Model.of(model.model_dump(mode="json")), Node.of(node.model_dump(mode="json"))
    return decide(version_of(version), args, env or {}, patches, *shapes, modules or {})


def texts(decision: Decision) -> str:
    return "\n".join(text for _, _, text in decision.lines)


@pytest.mark.parametrize("version", VERSIONS)
def test_two_batch_overlap_is_refused_in_every_version(version: str) -> None:
    refusal = decided(version, {"enable-two-batch-overlap": True}).refusal
    assert refusal is not None
    assert refusal.stage == "arguments"
    if version_of(version) < (0, 5, 15):
        assert refusal.line == "ValueError: When enabling two batch overlap, moe_a2a_backend cannot be 'none'."
    else:
        needed = "--attn-dp-size" if version_of(version) >= (0, 5, 22) else "--enable-dp-attention"
        assert needed in refusal.line
        assert "(DeepSeek-V4 non-EP DP TBO path)" in refusal.line


@pytest.mark.parametrize("version", VERSIONS)
def test_single_batch_overlap_is_inert_on_sm120_and_refused_on_sm90_from_0_5_13(version: str) -> None:
    option = {"enable-single-batch-overlap": True}
    assert decided(version, option).refusal is None
    assert decided(version, option).force == decided(version).force
    refusal = decided(version, option, h200=True).refusal
    if version_of(version) >= (0, 5, 13):
        assert refusal is not None
        assert refusal.stage == "scheduler"
        assert "not supported on SM90" in refusal.sentence
    else:
        assert refusal is None


@pytest.mark.parametrize("version", VERSIONS)
def test_fusion_on_sm120_without_the_patch(version: str) -> None:
    decision = decided(version, FUSION)
    assert not decision.force.fusion
    if version_of(version) <= (0, 5, 10):
        assert decision.refusal is None
        assert "FlashInfer" not in texts(decision)
    elif version_of(version) < (0, 5, 14):
        assert decision.refusal is None
        assert "Skipping allreduce fusion" in texts(decision)
    else:
        assert decision.refusal is not None
        assert decision.refusal.line == "ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."


@pytest.mark.parametrize("version", VERSIONS)
def test_fusion_on_sm120_with_the_patch(version: str) -> None:
    decision = decided(version, FUSION, patches=("sm120_fusion",))
    assert decision.refusal is None
    assert decision.force.fusion
    wanted = (
        "workspace initialized for rank 7, world_size 8" if version_of(version) < (0, 5, 14) else "backend=trtllm, rank=7, world_size=8"
    )
    assert wanted in texts(decision)
    assert not decided(version, patches=("sm120_fusion",)).force.fusion, "the patch alone switches nothing on"


def test_fusion_is_switched_on_by_the_engine_on_sm90_unless_that_is_forbidden() -> None:
    decision = decided("0.5.15.post1", h200=True)
    assert decision.force.fusion
    assert "Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for Qwen3MoeForCausalLM" in texts(decision)
    assert decision.args["flashinfer_allreduce_fusion_backend"] == "auto"
    forbidden = decided("0.5.15.post1", {"enforce-disable-flashinfer-allreduce-fusion": True}, h200=True)
    assert not forbidden.force.fusion
    assert "Auto-enabling" not in texts(forbidden)


def test_fusion_without_its_module_is_silent_and_shown_as_intent() -> None:
    decision = decided("0.5.15.post1", {"flashinfer-allreduce-fusion-backend": "trtllm"}, h200=True, modules={"flashinfer_comm": False})
    assert not decision.force.fusion
    assert decision.refusal is None
    assert decision.args["flashinfer_allreduce_fusion_backend"] == "trtllm"
    assert "flashinfer.comm allreduce_fusion API is not available" in texts(decision)


@pytest.mark.parametrize("version", VERSIONS)
def test_mscclpp_and_its_bytes_by_version(version: str) -> None:
    option = {"enable-mscclpp": True}
    small, large = (decided(version, option, {"SGLANG_MSCCLPP_MAX_BYTES": size}) for size in ("256KB", "4MB"))
    plain = decided(version)
    if version_of(version) < (0, 5, 14):
        assert small.force.mscclpp_legacy_bytes == 262144
        assert large.force.mscclpp_legacy_bytes == 4194304
        assert "msg_size" not in texts(large)
        debug = "\n".join(text for _, _, text in large.debug_lines)
        assert "for msg_size 4194304, best_config:" in debug
    else:
        assert small.force == large.force == plain.force, "nothing reads the variable, and there is no module"
        loud = version_of(version) >= (0, 5, 21)
        assert ("PyMscclpp is unavailable" in texts(large)) == loud
    assert small.args["enable_mscclpp"] is True, "/server_info shows intent"


def test_mscclpp_with_its_module_works_from_0_5_14_on() -> None:
    decision = decided("0.5.21", {"enable-mscclpp": True}, modules={"mscclpp": True})
    assert decision.force.mscclpp_module
    assert "Created MSCCL++ communicator: group=tp world_size=8" in texts(decision)


def test_legacy_mscclpp_needs_eight_ranks() -> None:
    decision = decided("0.5.9", {"enable-mscclpp": True}, h200=True)
    assert not decision.force.mscclpp_legacy_bytes
    assert "unsupported world size: 2" in texts(decision)


@pytest.mark.parametrize(("text", "sentence"), [("1048576", "Unsupported unit: 6"), ("1M", "Unsupported unit: M")])
def test_bytes_without_a_known_unit_kill_the_server_even_with_the_flag_off(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        max_bytes_of(text)
    refusal = decided("0.5.13.post1", env={"SGLANG_MSCCLPP_MAX_BYTES": text}).refusal
    assert refusal is not None
    assert refusal.stage == "scheduler"
    assert decided("0.5.14", env={"SGLANG_MSCCLPP_MAX_BYTES": text}).refusal is None


@pytest.mark.parametrize(("text", "size"), [("1MB", 1 << 20), ("512KB", 1 << 19), ("1048576B", 1 << 20), ("2 MB", 1 << 21)])
def test_bytes_with_a_unit(text: str, size: int) -> None:
    assert max_bytes_of(text) == size


def test_bytes_that_are_no_power_of_two_end_in_an_index_error_at_capture() -> None:
    refusal = decided("0.5.9", {"enable-mscclpp": True}, {"SGLANG_MSCCLPP_MAX_BYTES": "3MB"}).refusal
    assert refusal is not None
    assert refusal.error == "IndexError"
    assert refusal.graph_capture
    within = {"enable-mscclpp": True, "cuda-graph-max-bs": 64}
    assert decided("0.5.9", within, {"SGLANG_MSCCLPP_MAX_BYTES": "3MB"}).refusal is None, "no captured batch falls between"


def test_custom_all_reduce_needs_nvlink_or_two_gpus() -> None:
    decision = decided("0.5.9")
    assert not decision.force.custom
    assert "not supported on more than two PCIe-only GPUs" in texts(decision)
    assert decided("0.5.9", {"disable-custom-all-reduce": True}).force == decision.force
    assert decided("0.5.15", h200=True).force.custom
    assert not decided("0.5.15", {"disable-custom-all-reduce": True}, h200=True).force.custom
    assert "CustomAllReduceV2 is disabled" in texts(decided("0.5.12"))


def test_pcie_ipc_works_from_0_5_22_on() -> None:
    env = {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}
    assert not decided("0.5.20", env=env).force.pcie_ipc
    assert "no pcie_ipc_comm; falling back to NCCL" in texts(decided("0.5.21", env=env))
    assert decided("0.5.22", env=env).force.pcie_ipc


def test_overlap_flags_switch_shared_expert_fusion_off_from_0_5_11_on() -> None:
    fused = {"disable-shared-experts-fusion": False}
    overlap = {**fused, "enable-single-batch-overlap": True}
    assert decided("0.5.10", overlap).force.shared_experts_fused
    decision = decided("0.5.13", overlap)
    assert decided("0.5.13", fused).force.shared_experts_fused
    assert not decision.force.shared_experts_fused
    assert "Shared experts fusion optimization is disabled" in texts(decision)
    assert decision.args["disable_shared_experts_fusion"] is True


@pytest.mark.parametrize(
    ("version", "options", "sizes"),
    [
        ("0.5.9", {"cuda-graph-bs": [1, 2, 8]}, (1, 2, 8)),
        ("0.5.15", {"cuda-graph-bs-decode": [8, 1]}, (1, 8)),
        ("0.5.15", {"cuda-graph-backend-decode": "disabled"}, ()),
        ("0.5.9", {"disable-cuda-graph": True}, ()),
        ("0.5.9", {"cuda-graph-max-bs": 10}, (1, 2, 4, 8, 10)),
        ("0.5.9", {"cuda-graph-bs": [1, 2, 8], "max-running-requests": 4}, (1, 2, 4)),
    ],
)
def test_captured_sizes(version: str, options: dict[str, Any], sizes: tuple[int, ...]) -> None:
    decision = decided(version, options)
    assert decision.force.graph_sizes == sizes
    if version_of(version) >= (0, 5, 14):
        assert decision.args["cuda_graph_config"]["decode"]["backend"] == ("full" if sizes else "disabled")


def test_nccls_variables_are_read() -> None:
    force = decided("0.5.9", env={"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128", "NCCL_MAX_NCHANNELS": "4"}).force
    assert (force.nccl_algorithm, force.nccl_protocol, force.nccl_channels) == ("tree", "ll128", 4)
