"""From a trace to a grade: what a short profile saw is evidence for the flags that choose the all-reduce."""

from pathlib import Path

import pytest
import yaml

from runner.engines.evidence import Sources, judge_evidence
from runner.loadgen.profile import profile_of
from runner.spec.factor import FactorSpec

FACTORS = Path(__file__).parent.parent.parent / "conf" / "factor"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CUSTOM = "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*, sglang::RankSignals)"
PUSH = "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>(AllReducePushData)"
MSCCLPP = "void sglang::allreduce_LL_1node<__nv_bfloat16>(mscclpp::DeviceHandle<mscclpp::MemoryChannel>*, void*)"
FUSION = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16, 8, true>"
MNNVL = "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true>"
TORCH = "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>"


def graded(factor: str, level: str, kernels: list[str], version: str = "0.5.15") -> str:
    """The grade after a profile in which `kernels` ran, last and shortest, beside fifty others; /server_info says nothing."""
    names = [*(f"void other_{number}" for number in range(50)), *kernels]
    events = [{"ph": "X", "cat": "kernel", "name": n, "ts": at * 10, "dur": 60 - at, "pid": 0, "tid": 7} for at, n in enumerate(names)]
    spec = FactorSpec.model_validate(yaml.safe_load((FACTORS / f"{factor}.yaml").read_text(encoding="utf-8")) | {"name": factor})
    sources = Sources(log="[2026-01-01 00:00:00] INFO: Started\n", server_info={}, trace=profile_of(events, 1).names)
    return judge_evidence(spec, level, sources, version).grade


@pytest.mark.parametrize(
    ("factor", "level", "kernels", "grade"),
    [
        ("custom_all_reduce", "on", [CUSTOM, NCCL], "observed"),
        ("custom_all_reduce", "on", [PUSH], "observed"),
        ("custom_all_reduce", "on", [NCCL], "resolved"),
        ("custom_all_reduce", "on", [TORCH], "resolved"),
        ("custom_all_reduce", "off", [NCCL], "observed"),
        ("custom_all_reduce", "off", [NCCL, CUSTOM], "contradicted"),
        ("custom_all_reduce", "off", [MSCCLPP], "resolved"),
        ("mscclpp", "on", [MSCCLPP, NCCL], "observed"),
        ("mscclpp", "off", [CUSTOM], "resolved"),
        ("mscclpp", "off", [MSCCLPP], "contradicted"),
        ("allreduce_fusion", "off", [FUSION], "contradicted"),
        ("allreduce_fusion", "off", [CUSTOM], "resolved"),
    ],
)
def test_what_a_profile_says_of_an_all_reduce(factor: str, level: str, kernels: list[str], grade: str) -> None:
    assert graded(factor, level, kernels) == grade


def test_an_old_silent_mscclpp_is_proved_by_its_kernels() -> None:
    assert graded("mscclpp", "on", [MSCCLPP], "0.5.11") == "observed"


@pytest.mark.parametrize(("level", "kernel"), [("trtllm", FUSION), ("auto", FUSION), ("auto", MNNVL), ("mnnvl", MNNVL)])
def test_each_backend_of_the_fusion_has_its_kernel(level: str, kernel: str) -> None:
    assert graded("allreduce_fusion", level, [kernel]) == "observed"


def test_the_other_backends_kernel_proves_nothing() -> None:
    assert graded("allreduce_fusion", "trtllm", [MNNVL]) != "observed"
