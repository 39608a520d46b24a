"""What a version of SGLang makes of an arm: refused, or served with certain things really in force.

Rules are from SGLang's release wheels (see conf/factor for the user's side of them). /server_info is no part of this: it shows
intent, as the real one does."""

import json
from collections.abc import Mapping
from typing import Any

from runner.engines.simulated.fusion import fusion_in_force, fusion_requested
from runner.engines.simulated.in_force import Decision, Force, Lines
from runner.engines.simulated.mscclpp import LEGACY_UNTIL, legacy_limit, legacy_start, module_start
from runner.engines.simulated.refusals import parallel_sizes, single_batch_overlap, two_batch_overlap
from runner.engines.simulated.shapes import Model, Node, Version

GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


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
    lines: Lines = []
    debug: Lines = []
    refusal = two_batch_overlap(version, args)
    requested = fusion_requested(version, args, model, node, tp, resolved, lines)
    if not modules.get("flashinfer_comm", True) and tp > 1:
        missing = "flashinfer.comm allreduce_fusion API is not available (No module named 'cutile_cache'), falling back to standard implementation"
        lines.append(("arguments", None, missing))
    refusal = refusal or parallel_sizes(args, node, tp)
    refusal = refusal or single_batch_overlap(version, args, node)
    shared = _shared_experts(version, args, model, node, resolved, lines)

    bytes_limit, legacy_refusal = legacy_limit(version, env)
    refusal = refusal or legacy_refusal
    graphs = graph_sizes_of(args, node, tp)
    if version >= (0, 5, 14):
        resolved["cuda_graph_config"] = _graph_config(graphs)
    mscclpp_module = False
    if not args.get("enable_mscclpp") or tp < 2:
        bytes_limit = 0
    elif version < LEGACY_UNTIL:
        refusal = refusal or legacy_start(bytes_limit, graphs, model, tp, lines, debug)
        bytes_limit = bytes_limit if 8 <= tp <= 16 else 0
    else:
        mscclpp_module = module_start(version, tp, modules.get("mscclpp", False), lines)

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
        fusion, refusal = fusion_in_force(version, patches, model, node, tp, lines)
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


def _shared_experts(version: Version, args: Mapping[str, Any], model: Model, node: Node, resolved: dict[str, Any], lines: Lines) -> bool:
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


def _pcie_ipc(version: Version, env: Mapping[str, str], tp: int, model: Model, lines: Lines) -> bool:
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
