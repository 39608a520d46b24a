"""MSCCL++: built into the kernels and limited by a variable up to 0.5.13, a Python module of its own from 0.5.14 on."""

import re
from collections.abc import Mapping

from runner.engines.simulated.in_force import Lines, Refusal
from runner.engines.simulated.shapes import Model, Version

LEGACY_UNTIL: Version = (0, 5, 14)
UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}


def max_bytes_of(text: str) -> int:
    """SGLANG_MSCCLPP_MAX_BYTES as SGLang up to 0.5.13 reads it: unit mandatory. Raises ValueError with SGLang's sentence."""
    match = re.match(r"(\d+)\s*(\w+)", text.strip())
    if match is None:
        raise ValueError(f"Unsupported format: {text}")
    unit = match.group(2).upper()
    if unit not in UNITS:
        raise ValueError(f"Unsupported unit: {unit}, support B, KB, MB, GB only")
    return int(match.group(1)) * UNITS[unit]


def legacy_limit(version: Version, env: Mapping[str, str]) -> tuple[int, Refusal | None]:
    """The largest message in bytes; 0 from 0.5.14 on, where nothing reads the variable."""
    if version >= LEGACY_UNTIL:
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


def legacy_start(
    bytes_limit: int,
    graphs: tuple[int, ...],
    model: Model,
    tp: int,
    lines: Lines,
    debug: Lines,
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


def module_start(version: Version, tp: int, importable: bool, lines: Lines) -> bool:
    """Is the module in force? A missing one is silent before 0.5.21."""
    if importable and version >= (0, 5, 21):
        text = "Created MSCCL++ communicator: group=tp world_size={tp} device=cuda:{rank} allreduce_configs=14 allgather_configs=9"
        lines += [("distributed", rank, text.format(tp=tp, rank=rank)) for rank in range(tp)]
    elif version >= (0, 5, 21):
        text = "PyMscclpp is unavailable because its dependencies failed to import: No module named 'mscclpp'"
        lines += [("distributed", rank, text) for rank in range(tp)]
    return importable and tp in (4, 8, 16, 32, 64)
