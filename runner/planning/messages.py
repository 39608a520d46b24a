"""Which all-reduce messages the measured decode batches send, and which of them a size limit lets through.

A decode step sends `rows * hidden_size * dtype_bytes` bytes, rows = captured batch x draft tokens: CUDA graphs pad a batch to the
next captured size, and a batch above the largest one runs without a graph, where legacy mscclpp is off.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.planning.pins import option_value
from runner.spec.model import ModelSpec
from runner.spec.workload import PhaseSpec


@dataclass(frozen=True)
class Coverage:
    """`covered`: message sizes (bytes, rising) under the limit; `largest`, `smallest`: of all messages, 0 where there are none."""

    covered: tuple[int, ...]
    largest: int
    smallest: int
    rows: int


def decode_batches(phases: Iterable[PhaseSpec]) -> tuple[int, ...]:
    """Decode batches that the phases measure: a closed loop of decode streams runs at its concurrency; in every other phase the
    batch moves, so every size up to the concurrency counts."""
    batches: set[int] = set()
    for phase in phases:
        if phase.kind == "decode" and phase.arrival == "closed":
            batches.add(phase.concurrency)
        else:
            batches.update(range(1, phase.concurrency + 1))
    return tuple(sorted(batches))


def captured(options: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Captured decode batches as far as the options tell: a list, (); () when graphs are off, None when the engine chooses."""
    for switch in ("disable-cuda-graph", "disable-decode-cuda-graph"):
        if option_value(options, switch) is True:
            return ()
    if option_value(options, "cuda-graph-backend-decode") == "disabled":
        return ()
    for name in ("cuda-graph-bs-decode", "cuda-graph-bs"):
        sizes = option_value(options, name)
        if sizes is not None:
            listed = sizes if isinstance(sizes, (list, tuple)) else [sizes]
            return tuple(sorted(int(size) for size in listed))
    return None


def coverage(limit: int, batches: Iterable[int], sizes: tuple[int, ...] | None, model: ModelSpec) -> Coverage:
    """What a limit of `limit` bytes lets through. `sizes`: captured batches (None: every batch its own)."""
    messages: set[int] = set()
    rows = 0
    for batch in batches:
        padded = batch if sizes is None else _padded(batch, sizes)
        if padded is None:
            continue
        rows = max(rows, padded * model.draft_tokens)
        messages.add(padded * model.draft_tokens * model.hidden_size * model.dtype_bytes)
    ordered = tuple(sorted(messages))
    covered = tuple(size for size in ordered if size <= limit)
    return Coverage(covered, ordered[-1] if ordered else 0, ordered[0] if ordered else 0, rows)


def _padded(batch: int, sizes: tuple[int, ...]) -> int | None:
    index = bisect_left(sizes, batch)
    return sizes[index] if index < len(sizes) else None
