"""Combinations that the engine refuses by itself, in its words."""

from collections.abc import Mapping
from typing import Any

from runner.engines.simulated.in_force import Refusal
from runner.engines.simulated.shapes import Node, Version


def two_batch_overlap(version: Version, args: Mapping[str, Any]) -> Refusal | None:
    if not args.get("enable_two_batch_overlap") or args.get("moe_a2a_backend", "none") != "none":
        return None
    frames = (
        ("launch_server.py", 51, "run_server"),
        ("srt/entrypoints/engine.py", 790, "_launch_subprocesses"),
        ("srt/server_args.py", 6704, "check_server_args"),
    )
    if version < (0, 5, 15):
        return Refusal("arguments", "ValueError", "When enabling two batch overlap, moe_a2a_backend cannot be 'none'.", frames)
    if args.get("enable_dp_attention") or int(args.get("attn_dp_size") or 1) > 1:
        return None
    needed = "attention DP (--attn-dp-size) is" if version >= (0, 5, 22) else "--enable-dp-attention is"
    sentence = (
        f"When enabling two batch overlap without an EP a2a backend (moe_a2a_backend='none'), {needed} required "
        "(DeepSeek-V4 non-EP DP TBO path)."
    )
    return Refusal("arguments", "ValueError", sentence, (*frames, ("srt/server_args.py", 6545, "_check_two_batch_overlap")))


def parallel_sizes(args: Mapping[str, Any], node: Node, tp: int) -> Refusal | None:
    ep = int(args.get("ep_size") or 1)
    if ep > 1 and tp % ep:
        return Refusal(
            "arguments", "AssertionError", "tp_size must be divisible by ep_size", (("srt/server_args.py", 2210, "__post_init__"),)
        )
    if node.gpus and tp > node.gpus:
        frames = (
            ("srt/managers/scheduler.py", 4325, "run_scheduler_process"),
            ("srt/model_executor/model_runner.py", 702, "init_torch_distributed"),
        )
        return Refusal("scheduler", "torch.AcceleratorError", "CUDA error: invalid device ordinal", frames)
    return None


def single_batch_overlap(version: Version, args: Mapping[str, Any], node: Node) -> Refusal | None:
    if not args.get("enable_single_batch_overlap") or not 90 <= node.capability < 100 or version < (0, 5, 13):
        return None
    sentence = (
        "SBO (single batch overlap) is not supported on SM90 GPUs with latest sgl-deep-gemm wheel. "
        "Please try removing --enable-single-batch-overlap argument."
    )
    frames = (
        ("srt/managers/scheduler.py", 4325, "run_scheduler_process"),
        ("srt/managers/scheduler.py", 414, "__init__"),
        ("srt/managers/scheduler.py", 757, "init_moe_gemm_config"),
        ("srt/layers/moe/utils.py", 292, "initialize_moe_config"),
    )
    return Refusal("scheduler", "ValueError", sentence, frames)
