"""Settings for tests of actions. Not a test file."""

from pathlib import Path
from typing import Any

from runner.config import Settings

NODE = {
    "name": "eight",
    "gpus": 8,
    "gpu_model": "a GPU",
    "capability": 120,
    "memory_gb": 96,
    "link": "pcie",
    "link_gb_s": 63,
    "all_reduce": {"nccl": {"alpha_us": 205, "gb_s": 63, "source": "published"}},
}
MODEL = {"name": "m", "hidden_size": 5632, "num_layers": 78}
PHASES = {"decode_c1": {"concurrency": 1}, "decode_c16": {"concurrency": 16}, "prefill": {"kind": "prefill", "concurrency": 4}}


def settings_of(root: Path, node: dict[str, Any] | None = None, **changes: Any) -> Settings:
    """Eight PCIe GPUs and a model of 78 layers; `node` and `changes` replace fields."""
    fields: dict[str, Any] = {
        "node": {**NODE, **(node or {})},
        "engine": {},
        "model": MODEL,
        "workload": {"name": "w", "phases": PHASES},
        "protocol": {},
        "tracking": {"root": str(root)},
        "phases": ["decode_c1", "decode_c16", "prefill"],
    }
    return Settings.model_validate({**fields, **changes})
