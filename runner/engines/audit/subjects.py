"""The flags whose gates are looked for: by what a condition must mention, never by file, line or function name."""

import re
from typing import Any

from pydantic import Field

from runner.spec.base import Strict


class Subject(Strict):
    """One flag. `anchors`: attribute names and variables that the option sets (they are the option's own name, so they outlive
    moves); `topic`: pattern of names and messages that belong to it; `on`: arguments of an arm that asks for it."""

    name: str
    option: str
    anchors: tuple[str, ...]
    topic: str
    on: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    calls: dict[str, bool] = Field(
        default_factory=dict, description="functions that tell whether the flag is on, where their body does not"
    )
    multicast: bool = Field(default=False, description="asks the driver for multicast objects (NVSwitch) on the way")
    words: tuple[str, ...] = Field(description="a file without any of these (in lower case) is not looked at")
    jit: str | None = Field(default=None, description="pattern of the sources FlashInfer compiles for it")

    @property
    def pattern(self) -> re.Pattern[str]:
        """What a line must contain to be of interest."""
        words = "|".join(re.escape(anchor) for anchor in self.anchors)
        return re.compile(rf"{words}|{self.topic}", re.I)


SUBJECTS: tuple[Subject, ...] = (
    Subject(
        name="mscclpp",
        words=("mscclpp",),
        option="enable-mscclpp",
        anchors=("enable_mscclpp",),
        topic=r"mscclpp|mscclp\+\+",
        on={"enable_mscclpp": True},
    ),
    Subject(
        name="allreduce_fusion",
        words=(
            "flashinfer_allreduce",
            "flashinfer allreduce",
            "flashinfer all-reduce",
            "flashinferworkspace",
            "flashinfer workspace",
            "flashinfer_ar_",
        ),
        option="enable-flashinfer-allreduce-fusion, flashinfer-allreduce-fusion-backend",
        anchors=("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend"),
        topic=r"flashinfer[ _-]all[_-]?reduce|flashinfer_ar_|flashinfer workspace|FlashInferWorkspace",
        on={
            "enable_flashinfer_allreduce_fusion": True,
            "flashinfer_allreduce_fusion_backend": "trtllm",
            "enforce_disable_flashinfer_allreduce_fusion": False,
        },
        multicast=True,
        jit=r"trtllm_allreduce_fusion|trtllm_comm",
    ),
    Subject(
        name="single_batch_overlap",
        words=("single_batch_overlap", "single batch overlap", "single-batch", "sbo"),
        option="enable-single-batch-overlap",
        anchors=("enable_single_batch_overlap", "is_sbo_enabled"),
        topic=r"single[ _-]batch[ _-]overlap|\bsbo\b|SboFlags",
        on={"enable_single_batch_overlap": True},
        calls={"is_sbo_enabled": True},
    ),
    Subject(
        name="two_batch_overlap",
        words=("two_batch_overlap", "two batch overlap", "two-batch", "tbo"),
        option="enable-two-batch-overlap",
        anchors=("enable_two_batch_overlap", "is_tbo_enabled"),
        topic=r"two[ _-]batch[ _-]overlap|\btbo\b",
        on={"enable_two_batch_overlap": True},
        calls={"is_tbo_enabled": True},
    ),
    Subject(
        name="custom_all_reduce",
        words=("custom_all_reduce", "custom_allreduce", "custom allreduce", "customallreduce"),
        option="disable-custom-all-reduce",
        anchors=("disable_custom_all_reduce",),
        topic=r"custom ?_?all_?reduce",
        on={"disable_custom_all_reduce": False},
    ),
    Subject(
        name="shared_experts_fusion",
        words=("shared_experts_fusion", "shared experts fusion", "fused_shared_expert", "shared expert"),
        option="disable-shared-experts-fusion, enforce-shared-experts-fusion",
        anchors=("disable_shared_experts_fusion", "enforce_shared_experts_fusion"),
        topic=r"shared[ _]experts?[ _]fusion|fused[ _]shared[ _]experts?|fus\w+ shared expert",
        on={"disable_shared_experts_fusion": False, "enforce_shared_experts_fusion": False},
    ),
    Subject(
        name="pcie_ipc_allreduce",
        words=("pcie_ipc", "pcie-ipc"),
        option="SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
        anchors=("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",),
        topic=r"pcie[_ -]ipc",
        environment={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"},
    ),
    Subject(
        name="torch_symm_mem",
        words=("torch_symm_mem", "torchsymmmem"),
        option="enable-torch-symm-mem",
        anchors=("enable_torch_symm_mem",),
        topic=r"torch_?symm_?mem",
        on={"enable_torch_symm_mem": True},
    ),
    Subject(
        name="nccl_nvls",
        words=("nccl_nvls", "enable_symm_mem"),
        option="enable-nccl-nvls, enable-symm-mem",
        anchors=("enable_nccl_nvls", "enable_symm_mem"),
        topic=r"nccl_nvls|\benable_symm_mem\b",
        on={"enable_nccl_nvls": True},
    ),
)
