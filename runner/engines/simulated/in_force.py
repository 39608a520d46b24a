"""What a decision about an arm says: the refusal, what is really in force, what the start prints because of the flags."""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Lines = list[tuple[str, int | None, str]]  # (stage, rank or None for the parent, text)


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
