"""The part of /server_info that decides whether arms are equal and whether a comparison is fair."""

from collections.abc import Mapping
from typing import Any

# What an arm may change without meaning to, and what then makes the comparison unfair: name shown -> fields, first found wins.
FAIRNESS: dict[str, tuple[str, ...]] = {
    "max_total_num_tokens": ("max_total_num_tokens",),
    "max_running_requests": ("effective_max_running_requests_per_dp", "max_running_requests"),
    "graph_batch_sizes_decode": ("cuda_graph_config.decode.bs", "cuda_graph_bs_decode", "cuda_graph_bs"),
    "graph_backend_decode": ("cuda_graph_config.decode.backend",),
    "graph_backend_prefill": ("cuda_graph_config.prefill.backend",),
    "disable_cuda_graph": ("disable_cuda_graph",),
    "chunked_prefill_size": ("chunked_prefill_size",),
    "max_prefill_tokens": ("max_prefill_tokens",),
    "context_length": ("max_req_input_len", "context_length"),
    "page_size": ("page_size",),
    "disable_radix_cache": ("disable_radix_cache",),
    "disable_overlap_schedule": ("disable_overlap_schedule",),
    "dtype": ("dtype",),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "quantization": ("quantization",),
    "speculative_algorithm": ("speculative_algorithm",),
    "speculative_num_steps": ("speculative_num_steps",),
    "speculative_num_draft_tokens": ("speculative_num_draft_tokens",),
    "tp_size": ("tp_size",),
    "dp_size": ("dp_size",),
    "ep_size": ("ep_size",),
    "pp_size": ("pp_size",),
    "disable_shared_experts_fusion": ("disable_shared_experts_fusion",),
    "numa_node": ("numa_node",),
    "load_format": ("load_format",),
    "model_path": ("model_path",),
    "version": ("version",),
}
# Treatments themselves: they decide equality, and differ between arms on purpose.
TREATMENTS: tuple[str, ...] = (
    "attention_backend",
    "decode_attention_backend",
    "prefill_attention_backend",
    "sampling_backend",
    "moe_runner_backend",
    "moe_a2a_backend",
    "fp4_gemm_runner_backend",
    "fp8_gemm_runner_backend",
    "dsa_prefill_backend",
    "dsa_decode_backend",
    "nsa_prefill_backend",
    "nsa_decode_backend",
    "enable_mscclpp",
    "enable_two_batch_overlap",
    "enable_single_batch_overlap",
    "enable_flashinfer_allreduce_fusion",
    "flashinfer_allreduce_fusion_backend",
    "enforce_disable_flashinfer_allreduce_fusion",
    "disable_custom_all_reduce",
    "enable_nccl_nvls",
    "enable_symm_mem",
    "enable_torch_symm_mem",
    "enable_dp_attention",
    "enable_dp_lm_head",
    "mem_fraction_static",
    "max_total_tokens",
)
# The KV pool depends on free memory to the last page; a difference below this share changes no measurement.
POOL_TOLERANCE = 0.005
_INNER_FIRST = frozenset({"disable_shared_experts_fusion", "effective_max_running_requests_per_dp"})


def resolved_view(server_info: Mapping[str, Any]) -> dict[str, Any]:
    """Flat name -> value of everything that decides equality and fairness, as the scheduler sees it where it says so. Without
    seeds, ports, paths of logs and counters. Fields that this version does not have are left out."""
    states = server_info.get("internal_states")
    inner = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    view: dict[str, Any] = {}
    for name, fields in FAIRNESS.items():
        found = next((value for field in fields if (value := _value(server_info, inner, field)) is not None), None)
        if found is not None:
            view[name] = found
    for field in TREATMENTS:
        value = _value(server_info, inner, field)
        if value is not None:
            view[field] = value
    memory = inner.get("memory_usage")
    if isinstance(memory, Mapping):
        view["memory_gb"] = {key: memory[key] for key in ("weight", "kvcache", "graph") if key in memory}
    return view


def unfair(arm_resolved: Mapping[str, Any], baseline_resolved: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences about what differs from the baseline besides the treatments: pool, graphs, limits, parallelism, precision."""
    found: list[str] = []
    for name in FAIRNESS:
        arm, baseline = arm_resolved.get(name), baseline_resolved.get(name)
        if arm == baseline or (name in {"max_total_num_tokens"} and _close(arm, baseline)):
            continue
        found.append(f"{name}: {_short(arm)}, baseline {_short(baseline)}")
    return tuple(found)


def _value(info: Mapping[str, Any], inner: Mapping[str, Any], field: str) -> Any:
    first, second = (inner, info) if field in _INNER_FIRST else (info, inner)
    found = _walk(first, field)
    return found if found is not None else _walk(second, field)


def _walk(body: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(body, Mapping):
            return None
        body = body.get(part)
    return body


def _close(arm: Any, baseline: Any) -> bool:
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (arm, baseline)):
        return False
    return abs(float(arm) - float(baseline)) <= POOL_TOLERANCE * max(abs(float(arm)), abs(float(baseline)))


def _short(value: Any) -> str:
    text = "not shown" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
