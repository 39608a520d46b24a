"""The options that a version knows, and argparse's words for those it does not.

Names and defaults come from /server_info of 0.5.15.post1 and 0.5.23 (`options.json`); the table below says which names came and
went (from SGLang's release wheels). Names outside the table are taken to exist in every version."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.engines.simulated.shapes import Version

EVER: Version = (0,)
NEVER: Version = (99,)

# name -> (first version, first version without it, default)
LIFE: dict[str, tuple[Version, Version, Any]] = {
    "stream_output": (EVER, (0, 5, 10), False),
    "incremental_streaming_output": ((0, 5, 10), NEVER, False),
    "enforce_disable_flashinfer_allreduce_fusion": ((0, 5, 10), NEVER, False),
    "enforce_shared_experts_fusion": ((0, 5, 10), NEVER, False),
    "use_ray": ((0, 5, 10), NEVER, False),
    "flashinfer_allreduce_fusion_backend": ((0, 5, 14), NEVER, None),
    "cuda_graph_max_bs": (EVER, (0, 5, 20), None),
    "cuda_graph_bs": (EVER, (0, 5, 20), None),
    "cuda_graph_config": ((0, 5, 14), NEVER, None),
    "cuda_graph_backend_decode": ((0, 5, 14), NEVER, None),
    "cuda_graph_backend_prefill": ((0, 5, 14), NEVER, None),
    "cuda_graph_max_bs_decode": ((0, 5, 14), NEVER, None),
    "cuda_graph_max_bs_prefill": ((0, 5, 14), NEVER, None),
    "cuda_graph_bs_decode": ((0, 5, 14), NEVER, None),
    "cuda_graph_bs_prefill": ((0, 5, 14), NEVER, None),
    "disable_prefill_cuda_graph": ((0, 5, 14), NEVER, False),
    "disable_decode_cuda_graph": ((0, 5, 14), NEVER, False),
    "enable_piecewise_cuda_graph": (EVER, (0, 5, 11), False),
    "disable_piecewise_cuda_graph": ((0, 5, 11), (0, 5, 20), False),
    "enforce_piecewise_cuda_graph": ((0, 5, 11), (0, 5, 20), False),
    "nsa_prefill_backend": (EVER, (0, 5, 20), None),
    "nsa_decode_backend": (EVER, (0, 5, 20), None),
    "dsa_prefill_backend": ((0, 5, 13), NEVER, None),
    "dsa_decode_backend": ((0, 5, 13), NEVER, None),
    "attn_dp_size": ((0, 5, 22), NEVER, 1),
}

SPELLINGS = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "model": "model_path",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
}

RUNNERS = "auto deep_gemm triton triton_kernel flashinfer_trtllm flashinfer_trtllm_routed flashinfer_cutlass flashinfer_mxfp4 flashinfer_cutedsl cutlass aiter marlin"
A2A = "none deepep mooncake nixl mori ascend_fuseep flashinfer megamoe deepep_v2 pplx flashinfer_megamoe"
CHOICES: dict[str, tuple[str, ...]] = {
    "moe_a2a_backend": tuple(A2A.split()),
    "moe_runner_backend": tuple(RUNNERS.split()),
    "flashinfer_allreduce_fusion_backend": ("auto", "trtllm", "mnnvl", "cutedsl"),
    "fp4_gemm_runner_backend": ("auto", "flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_cutedsl", "marlin"),
    "log_level": ("critical", "error", "warning", "info", "debug", "trace"),
    "schedule_policy": ("lpm", "random", "fcfs", "dfs-weight", "lof", "priority", "routing-key"),
    "load_format": (
        "auto",
        "pt",
        "safetensors",
        "npcache",
        "dummy",
        "sharded_state",
        "gguf",
        "bitsandbytes",
        "layered",
        "flash_rl",
        "fastsafetensors",
    ),
}
NUMBERS = [
    "max_running_requests",
    "max_total_tokens",
    "max_queued_requests",
    "chunked_prefill_size",
    "context_length",
    "page_size",
    "random_seed",
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_prefill",
    "nccl_port",
    "dist_timeout",
]
FLOATS = ("mem_fraction_static",)
LISTS = ("cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill", "numa_node")


class Refused(Exception):
    """argparse refuses: `text` is its usage and its last line, exit code 2."""

    def __init__(self, sentence: str, text: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.text = text


@dataclass(frozen=True)
class Known:
    """Option name (underscores) -> default, for one version."""

    version: Version
    defaults: dict[str, Any]


def known(version: Version) -> Known:
    """The options of a version."""
    data = json.loads((Path(__file__).parent / "options.json").read_text(encoding="utf-8"))
    defaults: dict[str, Any] = dict(data["base"])
    if version >= (0, 5, 20):
        defaults = {name: value for name, value in defaults.items() if name not in data["gone_0.5.20"]} | data["added_0.5.20"]
    for name, (first, gone, default) in LIFE.items():
        if first <= version < gone:
            defaults.setdefault(name, default)
        else:
            defaults.pop(name, None)
    return Known(version, defaults)


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options of a LaunchOrder as words, as `engines.base.argv_of` makes them (not imported: the server starts without pydantic)."""
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.lstrip('-')}")
        if isinstance(value, (list, tuple)):
            words += [str(item) for item in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value, separators=(",", ":")))
        elif value is not True:
            words.append(str(value))
    return words


def parse(words: Sequence[str], version: Version) -> dict[str, Any]:
    """All arguments of the server by SGLang's names (underscores), given ones over defaults. Raises Refused with argparse's words."""
    table = known(version)
    args = dict(table.defaults)
    strange: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("--"):
            strange.append(word)
            continue
        text, has_value, inline = word[2:].partition("=")
        values = [inline] if has_value else []
        while position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        name = _name(text.replace("-", "_"), table)
        if name is None:
            strange += [word, *([] if has_value else values)]
            continue
        if table.defaults[name] is False or table.defaults[name] is True:
            args[name] = True
            strange += values
            continue
        if not values:
            raise _refusal(f"error: argument --{text}: expected one argument", table)
        if _is_list(name, table):
            args[name] = [_value(name, value, table) for value in values]
        else:
            args[name] = _value(name, values[0], table)
            strange += values[1:]
    if strange:
        raise _refusal(f"error: unrecognized arguments: {' '.join(strange)}", table)
    return args


def _is_list(name: str, table: Known) -> bool:
    return isinstance(table.defaults[name], list) or name in LISTS


def _name(word: str, table: Known) -> str | None:
    name = SPELLINGS.get(word, word)
    if name in table.defaults:
        return name
    # argparse takes an unambiguous beginning of a name; SGLang leaves that on
    starting = sorted(candidate for candidate in table.defaults if candidate.startswith(word))
    if len(starting) > 1:
        matches = ", ".join("--" + candidate.replace("_", "-") for candidate in starting)
        raise _refusal(f"error: ambiguous option: --{word.replace('_', '-')} could match {matches}", table)
    return starting[0] if starting else None


def _value(name: str, text: str, table: Known) -> Any:
    option = f"argument --{name.replace('_', '-')}"
    default = table.defaults[name]
    choices = CHOICES.get(name)
    if choices is not None and text not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise _refusal(f"error: {option}: invalid choice: {text!r} (choose from {listed})", table)
    whole = name in NUMBERS or name in LISTS or (isinstance(default, int) and not isinstance(default, bool))
    kind: type = int if whole else float if isinstance(default, float) or name in FLOATS else str
    try:
        return kind(text)
    except ValueError:
        raise _refusal(f"error: {option}: invalid {kind.__name__} value: {text!r}", table) from None


def _refusal(sentence: str, table: Known) -> Refused:
    program = "sglang serve" if table.version >= (0, 5, 20) else "launch_server.py"
    words = [f"[--{name.replace('_', '-')}{'' if default is False else ' ' + name.upper()}]" for name, default in table.defaults.items()]
    lines, line = [], f"usage: {program} [-h]"
    for word in words:
        if len(line) + len(word) > 78:
            lines.append(line)
            line = " " * 20
        line += " " + word
    lines.append(line)
    last = f"{program}: {sentence}"
    return Refused(last, "\n".join([*lines, last]))
