"""What a version of SGLang makes of an arm: refused, or served with certain things really in force.

Rules are from SGLang's release wheels (see conf/factor for the user's side of them). /server_info is no part of this: it shows
intent, as the real one does."""

import bisect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.engines.simulated.shapes import Model, Node, Version

FUSION_ROWS = 2048  # FUSE_ALLREDUCE_MAX_BATCH_SIZE
LEGACY_MSCCLPP_UNTIL: Version = (0, 5, 14)
FUSION_MODELS = ("DeepseekV3ForCausalLM", "GptOssForCausalLM", "Glm4MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM")
GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}


@dataclass(frozen=True)
class Refusal:
    """`stage`: arguments (the parent raises, exit code 1) or scheduler (a child raises, the parent kills itself)."""

    stage: str
    error: str
    sentence: str
    frames: tuple[tuple[str, int, str], ...] = ()
    graph_capture: bool = False

    @property
    def line(self) -> str:
        return f"{self.error}: {self.sentence}"


@dataclass(frozen=True)
class Force:
    """What really happens in this process. Sizes in bytes, `graph_sizes`: decode batches with a CUDA graph, rising (empty: none);
    `nccl_algorithm`, `nccl_protocol`, `nccl_channels`: what NCCL's variables force on it, '' and 0 for its own choice."""

    tp: int = 1
    graph_sizes: tuple[int, ...] = ()
    custom: bool = False
    mscclpp_legacy_bytes: int = 0
    mscclpp_module: bool = False
    fusion: bool = False
    pcie_ipc: bool = False
    shared_experts_fused: bool = False
    overlap_schedule: bool = True
    nccl_algorithm: str = ""
    nccl_protocol: str = ""
    nccl_channels: int = 0

    @property
    def graph_rows(self) -> int:
        """Largest batch with a CUDA graph; 0 where there is none."""
        return self.graph_sizes[-1] if self.graph_sizes else 0

    def padded(self, batch: int) -> int:
        """The captured size that a batch runs with; itself where it runs eagerly."""
        place = bisect.bisect_left(self.graph_sizes, batch)
        return self.graph_sizes[place] if place < len(self.graph_sizes) else batch

    @property
    def names(self) -> tuple[str, ...]:
        """Words for reports and traces."""
        words = {
            "custom_all_reduce": self.custom,
            "mscclpp": bool(self.mscclpp_legacy_bytes) or self.mscclpp_module,
            "fusion": self.fusion,
            "pcie_ipc": self.pcie_ipc,
            "shared_experts_fused": self.shared_experts_fused,
            "cuda_graph": bool(self.graph_sizes),
            "overlap_schedule": self.overlap_schedule,
        }
        return tuple(word for word, on in words.items() if on)


@dataclass(frozen=True)
class Decision:
    """`lines`: what a start prints because of the flags, (stage, rank or None for the parent, text); stages are arguments,
    distributed, graphs. `debug_lines` only appear with --log-level debug."""

    force: Force
    refusal: Refusal | None = None
    lines: tuple[tuple[str, int | None, str], ...] = ()
    debug_lines: tuple[tuple[str, int | None, str], ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)


def max_bytes_of(text: str) -> int:
    """SGLANG_MSCCLPP_MAX_BYTES as SGLang up to 0.5.13 reads it: unit mandatory. Raises ValueError with SGLang's sentence."""
    match = re.match(r"(\d+)\s*(\w+)", text.strip())
    if match is None:
        raise ValueError(f"Unsupported format: {text}")
    unit = match.group(2).upper()
    if unit not in UNITS:
        raise ValueError(f"Unsupported unit: {unit}, support B, KB, MB, GB only")
    return int(match.group(1)) * UNITS[unit]


def decide(
    version: Version,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    patches: tuple[str, ...],
    model: Model,
    node: Node,
    modules: Mapping[str, bool],
) -> Decision:
    """`args`: from options.parse. `modules`: importable in the engine's environment (`mscclpp`, `flashinfer_comm`)."""
    tp = int(args.get("tp_size", 1))
    resolved = dict(args)
    lines: list[tuple[str, int | None, str]] = []
    debug: list[tuple[str, int | None, str]] = []
    refusal = _two_batch_overlap(version, args)
    requested = _fusion_requested(version, args, model, node, tp, resolved, lines)
    if not modules.get("flashinfer_comm", True) and tp > 1:
        missing = "flashinfer.comm allreduce_fusion API is not available (No module named 'cutile_cache'), falling back to standard implementation"
        lines.append(("arguments", None, missing))
    refusal = refusal or _parallel_sizes(args, node, tp)
    refusal = refusal or _single_batch_overlap(version, args, node)
    shared = _shared_experts(version, args, model, node, resolved, lines)

    bytes_limit, legacy_refusal = _legacy_mscclpp(version, args, env, tp)
    refusal = refusal or legacy_refusal
    graphs = graph_sizes_of(args, node, tp)
    if version >= (0, 5, 14):
        resolved["cuda_graph_config"] = _graph_config(graphs)
    mscclpp_module = False
    if args.get("enable_mscclpp") and tp > 1:
        if version < LEGACY_MSCCLPP_UNTIL:
            refusal = refusal or _legacy_lines(bytes_limit, graphs, model, tp, lines, debug)
            if not 8 <= tp <= 16:
                bytes_limit = 0
        elif modules.get("mscclpp", False):
            mscclpp_module = tp in (4, 8, 16, 32, 64)
            if version >= (0, 5, 21):
                lines += [
                    (
                        "distributed",
                        rank,
                        f"Created MSCCL++ communicator: group=tp world_size={tp} device=cuda:{rank} allreduce_configs=14 allgather_configs=9",
                    )
                    for rank in range(tp)
                ]
        elif version >= (0, 5, 21):
            lines += [
                ("distributed", rank, "PyMscclpp is unavailable because its dependencies failed to import: No module named 'mscclpp'")
                for rank in range(tp)
            ]
    else:
        bytes_limit = 0

    custom = tp > 1 and node.capability > 0 and not args.get("disable_custom_all_reduce")
    if custom and tp > 2 and not node.fast_link:
        custom = False
        names = ("CustomAllReduceV2", "CustomAllreduce") if version >= (0, 5, 12) else ("Custom allreduce",)
        for name in names:
            text = (
                f"{name} is disabled because it's not supported on more than two PCIe-only GPUs. "
                "To silence this warning, specify disable_custom_all_reduce=True explicitly."
            )
            lines += [("distributed", rank, text) for rank in range(tp)]
    if args.get("enable_torch_symm_mem") and node.sm120 and tp > 1:
        text = "TorchSymmMemCommunicator: Device capability 12 not supported, communicator is not available."
        lines += [("distributed", rank, text) for rank in range(tp)]

    pcie_ipc = _pcie_ipc(version, env, tp, model, lines)
    fusion = False
    if requested and refusal is None and modules.get("flashinfer_comm", True):
        fusion, refusal = _fusion(version, patches, model, node, tp, lines)
    force = Force(
        tp=tp,
        graph_sizes=graphs,
        custom=custom,
        mscclpp_legacy_bytes=bytes_limit,
        mscclpp_module=mscclpp_module,
        fusion=fusion and not args.get("enable_dp_attention"),
        pcie_ipc=pcie_ipc,
        shared_experts_fused=shared,
        overlap_schedule=not args.get("disable_overlap_schedule"),
        nccl_algorithm=env.get("NCCL_ALGO", "").lower(),
        nccl_protocol=env.get("NCCL_PROTO", "").lower(),
        nccl_channels=int(env.get("NCCL_MAX_NCHANNELS") or 0),
    )
    return Decision(force, refusal, tuple(lines), tuple(debug), resolved)


def graph_sizes_of(args: Mapping[str, Any], node: Node, tp: int) -> tuple[int, ...]:
    """Decode batches that are captured as CUDA graphs; the automatic largest one follows the memory of a GPU."""
    config = args.get("cuda_graph_config")
    decode = (json.loads(config) if isinstance(config, str) else config or {}).get("decode") or {}
    off = args.get("disable_cuda_graph") or args.get("disable_decode_cuda_graph")
    off = off or "disabled" in (args.get("cuda_graph_backend_decode"), decode.get("backend"))
    if node.capability == 0 or off:
        return ()
    listed = args.get("cuda_graph_bs_decode") or args.get("cuda_graph_bs") or decode.get("bs")
    automatic = 512 if node.memory_gb >= 90 and tp >= 4 else 256 if node.memory_gb >= 60 else 160
    largest = int(args.get("cuda_graph_max_bs_decode") or args.get("cuda_graph_max_bs") or decode.get("max_bs") or automatic)
    sizes = sorted({int(size) for size in listed}) if listed else [*(size for size in GRAPH_SIZES if size < largest), largest]
    running = int(args.get("max_running_requests") or 0)
    if running and sizes[-1] > running:
        sizes = [*(size for size in sizes if size < running), running]
    return tuple(sizes)


def _graph_config(sizes: tuple[int, ...]) -> dict[str, Any]:
    """`cuda_graph_config` as /server_info shows it from 0.5.14 on."""
    common = {"tc_compiler": "eager", "full_prefill_max_req": None}
    decode = {"backend": "full" if sizes else "disabled", "max_bs": sizes[-1] if sizes else None, "bs": list(sizes), **common}
    return {"decode": decode, "prefill": {"backend": "disabled", "max_bs": None, "bs": [], **common}}


def _two_batch_overlap(version: Version, args: Mapping[str, Any]) -> Refusal | None:
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


def _parallel_sizes(args: Mapping[str, Any], node: Node, tp: int) -> Refusal | None:
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


def _single_batch_overlap(version: Version, args: Mapping[str, Any], node: Node) -> Refusal | None:
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


def _shared_experts(
    version: Version, args: Mapping[str, Any], model: Model, node: Node, resolved: dict[str, Any], lines: list[tuple[str, int | None, str]]
) -> bool:
    """Is the shared expert fused into the MoE kernel? Overlap flags switch that off from 0.5.11 on."""
    if not model.shared_experts or args.get("disable_shared_experts_fusion"):
        return False
    off = int(args.get("ep_size") or 1) > 1 or args.get("moe_a2a_backend", "none") != "none"
    off = off or args.get("moe_runner_backend") in ("flashinfer_trtllm", "flashinfer_cutedsl")
    overlap = args.get("enable_single_batch_overlap") or args.get("enable_two_batch_overlap")
    if overlap and version >= (0, 5, 11):
        text = "SBO/TBO enabled: incompatible with fusing shared expert into MoE kernel. Shared experts fusion optimization is disabled."
        lines.append(("distributed", 0, text))
        off = True
    if version >= (0, 5, 18) and model.weight_bits < 8:
        off = True  # the precision of routed and shared experts differs
    if off:
        resolved["disable_shared_experts_fusion"] = True
    return not off and node.capability > 0


def _legacy_mscclpp(version: Version, args: Mapping[str, Any], env: Mapping[str, str], tp: int) -> tuple[int, Refusal | None]:
    if version >= LEGACY_MSCCLPP_UNTIL:
        return 0, None
    try:
        # read while the class is defined, in every scheduler: a bad value kills the server even with the flag off
        return max_bytes_of(env.get("SGLANG_MSCCLPP_MAX_BYTES", "1MB")), None
    except ValueError as error:
        frames = (
            ("srt/managers/scheduler.py", 2890, "run_scheduler_process"),
            ("srt/distributed/device_communicators/pymscclpp.py", 93, "PyMscclppCommunicator"),
            ("srt/distributed/device_communicators/pymscclpp.py", 48, "mscclpp_convert_to_bytes"),
        )
        return 0, Refusal("scheduler", "ValueError", str(error), frames)


def _legacy_lines(
    bytes_limit: int,
    graphs: tuple[int, ...],
    model: Model,
    tp: int,
    lines: list[tuple[str, int | None, str]],
    debug: list[tuple[str, int | None, str]],
) -> Refusal | None:
    if not 8 <= tp <= 16:
        text = f"PyMscclpp is disabled due to an unsupported world size: {tp}. Supported world sizes: [8, 16]. To silence this warning, specify disable_mscclpp=True explicitly."
        lines += [("distributed", rank, text) for rank in range(tp)]
        return None
    power = 1 << (bytes_limit.bit_length() - 1)
    row = model.hidden * model.dtype_bytes * model.draft_tokens
    if any(power < size * row <= bytes_limit for size in graphs):
        frames = (
            ("srt/model_executor/cuda_graph_runner.py", 640, "capture"),
            ("srt/distributed/device_communicators/pymscclpp.py", 288, "all_reduce"),
        )
        return Refusal("scheduler", "IndexError", "list index out of range", frames, graph_capture=True)
    debug += [("distributed", rank, f"start to pre-tune configs for rank {rank}") for rank in range(tp)]
    size = 1024
    while size <= bytes_limit:
        best = {"nthreads": 512 if size < 1 << 18 else 1024, "nblocks": 8 if size < 1 << 16 else 24}
        microseconds = 9.0 + size / 60e3
        debug.append(("distributed", 0, f"for msg_size {size}, best_config: {best}, best_time: {microseconds:.3f}us"))
        size *= 2
    return None


def _pcie_ipc(version: Version, env: Mapping[str, str], tp: int, model: Model, lines: list[tuple[str, int | None, str]]) -> bool:
    if env.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "0").lower() not in ("1", "true", "yes") or version < (0, 5, 21):
        return False
    if version < (0, 5, 22):
        text = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is set but this FlashInfer build has no pcie_ipc_comm; falling back to NCCL all-reduce."
        lines += [("distributed", rank, text) for rank in range(tp)]
        return False
    if tp not in (2, 4, 8):
        return False
    lines.append(("distributed", 0, f"FlashInfer PCIe-IPC all-reduce enabled (world={tp}, workspace sized on first reduction)"))
    lines.append(("graphs", 0, f"FlashInfer PCIe-IPC workspace built (world={tp}, max_numel={512 * model.hidden}, hidden={model.hidden})"))
    return True


def _fusion_requested(
    version: Version,
    args: Mapping[str, Any],
    model: Model,
    node: Node,
    tp: int,
    resolved: dict[str, Any],
    lines: list[tuple[str, int | None, str]],
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


def _fusion(
    version: Version, patches: tuple[str, ...], model: Model, node: Node, tp: int, lines: list[tuple[str, int | None, str]]
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
