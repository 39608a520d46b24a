"""FlashInfer's fused all-reduce: who asks for it, and whether this GPU, version and patch let it come into force."""

from collections.abc import Mapping
from typing import Any

from runner.engines.simulated.in_force import Lines, Refusal
from runner.engines.simulated.shapes import Model, Node, Version

FUSION_ROWS = 2048  # FUSE_ALLREDUCE_MAX_BATCH_SIZE
FUSION_MODELS = ("DeepseekV3ForCausalLM", "GptOssForCausalLM", "Glm4MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM")


def fusion_requested(
    version: Version,
    args: Mapping[str, Any],
    model: Model,
    node: Node,
    tp: int,
    resolved: dict[str, Any],
    lines: Lines,
) -> bool:
    """Asked for by an option, or switched on by the engine itself (SM90, SM10x). Fills `resolved` as the real one does."""
    if args.get("enforce_disable_flashinfer_allreduce_fusion"):
        resolved["enable_flashinfer_allreduce_fusion"] = False
        if "flashinfer_allreduce_fusion_backend" in resolved:
            resolved["flashinfer_allreduce_fusion_backend"] = None
        return False
    asked = bool(args.get("enable_flashinfer_allreduce_fusion") or args.get("flashinfer_allreduce_fusion_backend"))
    if args.get("enable_flashinfer_allreduce_fusion") and version >= (0, 5, 14):
        lines.append(
            (
                "arguments",
                None,
                "--enable-flashinfer-allreduce-fusion is deprecated, use --flashinfer-allreduce-fusion-backend auto instead.",
            )
        )
        resolved["flashinfer_allreduce_fusion_backend"] = args.get("flashinfer_allreduce_fusion_backend") or "auto"
    if asked:
        return tp > 1
    models = (*FUSION_MODELS, "GlmMoeDsaForCausalLM") if version >= (0, 5, 11) else FUSION_MODELS
    automatic = (
        tp > 1
        and 90 <= node.capability < 110
        and model.architecture in models
        and args.get("moe_a2a_backend", "none") == "none"
        and not args.get("enable_dp_attention")
        and not args.get("enable_deterministic_inference")
    )
    if not automatic:
        return False
    if version >= (0, 5, 14):
        resolved["flashinfer_allreduce_fusion_backend"] = "auto"
    else:
        resolved["enable_flashinfer_allreduce_fusion"] = True
    text = (
        f"Auto-enabling FlashInfer AllReduce Fusion (auto) for {model.architecture}"
        if version >= (0, 5, 23)
        else f"Auto-enabling FlashInfer AllReduce Fusion on SM90/SM10X for {model.architecture}"
    )
    lines.append(("arguments", None, text))
    return True


def patched(patches: tuple[str, ...]) -> bool:
    """Does the overlay hold the SM120 fusion patch?"""
    return any("sm120" in name.replace("-", "_").lower() and "fusion" in name.lower() for name in patches)


def fusion_in_force(
    version: Version, patches: tuple[str, ...], model: Model, node: Node, tp: int, lines: Lines
) -> tuple[bool, Refusal | None]:
    """Requested: does it come into force?"""
    supported = 90 <= node.capability < 110 or (node.sm120 and patched(patches))
    if supported:
        if version < (0, 5, 14):
            ending = ", backend trtllm" if version >= (0, 5, 10) else ""
            lines += [("graphs", rank, f"FlashInfer workspace initialized for rank {rank}, world_size {tp}{ending}") for rank in range(tp)]
        else:
            lines += [
                (
                    "graphs",
                    rank,
                    "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=trtllm, "
                    f"rank={rank}, world_size={tp}, max_token_num={FUSION_ROWS}, hidden_dim={model.hidden}",
                )
                for rank in range(tp)
            ]
        return True, None
    if version < (0, 5, 11):
        return False, None
    if version < (0, 5, 14):
        text = "FlashInfer workspace preflight: cuMemCreate probe failed on at least one rank. Skipping allreduce fusion."
        lines += [("graphs", rank, text) for rank in range(tp)]
        return False, None
    frames = (
        ("srt/managers/scheduler.py", 4325, "run_scheduler_process"),
        ("srt/model_executor/runner/base_runner.py", 245, "_pre_initialize_flashinfer_allreduce_workspace"),
        ("srt/layers/flashinfer_comm_fusion.py", 51, "_resolve_backend"),
    )
    sentence = "FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."
    return False, Refusal("scheduler", "ValueError", sentence, frames)
