"""Small hand-made traces, and the names that real kernels have."""

import gzip
import json
from pathlib import Path

import pytest

from runner.loadgen import profile as p


def kernel(name: str, ts: float, dur: float, cat: str = "kernel", tid: int = 7) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": tid}


FIXTURES = Path(__file__).parent.parent / "fixtures" / "loadgen"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HAND = [
    kernel("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", 0, 400),
    kernel(NCCL, 400, 300),
    kernel("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", 700, 100),
    kernel("some_unknown_thing", 1000, 50),
    kernel("Memcpy DtoD (Device -> Device)", 1000, 100, cat="gpu_memcpy", tid=8),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9000},
    {"ph": "i", "name": "mark", "ts": 1},
]


def test_milliseconds_a_pass_by_kind() -> None:
    profile = p.profile_of(HAND, passes=2)
    assert profile.device == "gpu"
    assert profile.pass_ms == pytest.approx(0.55)
    assert profile.by_kind == pytest.approx({"gemm": 0.2, "all_reduce": 0.15, "norm": 0.05, "memory": 0.05, "unnamed": 0.025})
    assert profile.idle_ms == pytest.approx(0.1)  # 200 us in which nothing ran
    assert profile.unnamed_share == pytest.approx(0.025 / 0.475)
    assert profile.share("all_reduce") == pytest.approx(0.15 / 0.475)
    assert (profile.kernels[0].kind, profile.kernels[0].calls) == ("gemm", 0.5)


def test_a_kernel_that_takes_no_time_is_named_all_the_same() -> None:
    """What proves a flag may be far down the list: one all-reduce of a microsecond among fifty larger kernels."""
    many = [kernel(f"void big_{number}", number * 100, 90) for number in range(50)]
    profile = p.profile_of([*many, kernel("void sglang::cross_device_reduce_1stage<__half, 2>", 5000, 1)], passes=1)
    assert not any("cross_device" in shown.name for shown in profile.kernels)
    assert any("cross_device_reduce_1stage" in name for name in profile.names)


def test_a_cpu_trace_counts_own_time_of_nested_operators() -> None:
    events = [
        kernel("aten::linear", 0, 100, "cpu_op"),
        kernel("aten::addmm", 10, 80, "cpu_op"),
        kernel("aten::copy_", 20, 30, "cpu_op"),
        kernel("aten::argmax", 100, 20, "cpu_op"),
        kernel("aten::mm", 0, 50, "cpu_op", tid=9),
    ]
    profile = p.profile_of(events, passes=1)
    assert profile.device == "cpu"
    assert profile.by_kind == pytest.approx({"gemm": 0.02 + 0.05 + 0.05, "memory": 0.03, "sampling": 0.02})
    assert profile.idle_ms == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (NCCL, "all_reduce"),
        ("void mscclpp::allreduce_LL_1node_kernel<__nv_bfloat16>(...)", "all_reduce"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>", "all_reduce"),
        ("void flashinfer::pcie_ipc::allreduce_oneshot_kernel<__nv_bfloat16, 8>", "all_reduce"),
        ("fused_moe_kernel", "moe"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<...>, PtrArrayTma...>", "moe"),
        ("void topkGatingSoftmax<float, 8, 128>", "moe"),
        ("void moe_align_block_size_kernel<int>", "moe"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>", "attention"),
        ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel", "attention"),
        ("fmhaSm100Kernel_QkvE4m3OBfloat16H128", "attention"),
        ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>", "norm"),
        ("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", "gemm"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, ...>>", "gemm"),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<...>", "sampling"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>", "sampling"),
        ("Memcpy HtoD (Pageable -> Device)", "memory"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "memory"),
        ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>", "activation"),
        ("cvt_fp16_to_fp4_quantize_kernel", "activation"),
        ("void sglang::cross_device_reduce_2stage<__half, 4>", "all_reduce"),
        ("void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>", "all_reduce"),
        ("void (anonymous namespace)::all_reduce_two_shot_kernel<__nv_bfloat16, 8u, true>", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true>", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>", "all_reduce"),
        ("void sglang::allreduce_LL_1node<__nv_bfloat16>(mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)", "all_reduce"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 7168>", "all_reduce"),
        ("bmm_E2m1_E2m1E2m1_Fp32_Ab16_Bb16_Cb16_t128x32x512_rM_TN_transOut_clmp_swiGlu_dynB_sm100f", "moe"),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_bC16_t128x8x512_dynB_sm100f", "moe"),
        ("void moe::dev::routing::routingMainKernel<...>", "moe"),
        ("void moe::dev::finalize::finalizeKernelVecLoad<...>", "moe"),
        ("void deep_gemm::sm100_m_grouped_fp8_gemm_nt_impl<...>", "moe"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u>", "gemm"),
        ("void deep_gemm::sm100_fp8_paged_mqa_logits<...>", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>", "attention"),
        ("void flash::prepare_varlen_num_blocks_kernel<1, true>", "attention"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("_fwd_kernel_stage2", "attention"),
        ("_fwd_kernel", "attention"),
        ("fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512", "attention"),
        ("void cutlass::device_kernel<flashinfer::gemm::device_gemm_nvfp4_sm120<...>>", "gemm"),
        ("void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8>", "gemm"),
        ("nvjet_sm100_tst_32x64_64x16_4x1_v_bz_splitK_TNN", "gemm"),
        ("void cvt_fp16_to_fp4<__nv_bfloat16, false>", "activation"),
        ("triton_poi_fused_mul_silu_0", "activation"),
        ("create_flashinfer_kv_indices_triton", "memory"),
        ("whatever", "unnamed"),
    ],
)
def test_real_kernel_names(name: str, kind: str) -> None:
    assert p.kind_of(name) == kind


def test_plain_and_gzipped_traces_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "1-TP-0.trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": HAND}).encode()))
    (tmp_path / "1-TP-1.trace.json").write_text(json.dumps(HAND))
    paths = p.wait_for_traces(tmp_path, 5)
    assert [path.name for path in paths] == ["1-TP-0.trace.json.gz", "1-TP-1.trace.json"]
    profile = p.read_profile(paths, 2)
    assert profile == p.profile_of(p.read_trace(paths[1]), 2).model_copy(update={"traces": profile.traces})
    assert len(profile.traces) == 2


def test_traces_that_are_no_good(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="no whole trace"):
        p.wait_for_traces(tmp_path, 0.3)
    half = tmp_path / "half.trace.json.gz"
    half.write_bytes(gzip.compress(b'{"traceEvents": []}' * 50)[:40])
    with pytest.raises(ValueError, match="half"):
        p.read_profile([half], 1)
    with pytest.raises(ValueError, match="neither kernels nor"):
        p.profile_of([], 1)


def test_covered_time_counts_overlaps_once() -> None:
    assert p.covered([(0, 10), (5, 12), (20, 21), (0, 1)]) == 13


def test_a_real_cpu_trace_of_sglang_names_its_operators_and_its_passes() -> None:
    """SGLang 0.5.15 on a CPU, two layers: five passes were asked for, the trace marks four."""
    profile = p.read_profile([FIXTURES / "cpu_trace.json.gz"], 5)
    assert (profile.device, profile.passes) == ("cpu", 4)
    calls = {kernel.name: kernel.calls for kernel in profile.kernels}
    assert calls["aten::mm"] == 9  # four a layer, and the head
    assert profile.unnamed_share < 0.02
    assert profile.share("gemm") > 0.5
    assert {"gemm", "attention", "norm", "sampling", "memory"} <= set(profile.by_kind)
