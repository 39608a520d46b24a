"""The request table of a phase: one row a request, chunk times and cumulative tokens as list columns, in Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.loadgen.rows import Row

if TYPE_CHECKING:
    from runner.loadgen.measures import Window

NS = 1_000_000_000
TEXTS = ("outcome", "error", "finish_reason")
NUMBERS = ("index", "worker", "status", "asked_input", "asked_output", "prompt_tokens", "cached_tokens", "retractions", "group")
FLAGS = ("counted", "retried")
TIMES = ("scheduled", "due", "sent", "ended")


def write_requests(path: Path, rows: Sequence[Row], origin: int, origin_unix: float, window: "Window") -> None:
    """Times in seconds from `origin` (monotonic ns); the file's metadata says what Unix time that is and where the steady
    window lies. A time that never happened is null. Renamed into place when whole. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, object] = {name: [getattr(row, name) for row in rows] for name in NUMBERS}
    columns |= {name: pa.array([getattr(row, name) for row in rows], pa.string()) for name in TEXTS}
    columns |= {name: [getattr(row, name) for row in rows] for name in FLAGS}
    for name in TIMES:
        values = [getattr(row, name) for row in rows]
        columns[f"{name}_s"] = pa.array([(value - origin) / NS if value else None for value in values], pa.float64())
    columns["chunk_s"] = pa.array([[(time - origin) / NS for time in row.times] for row in rows], pa.list_(pa.float64()))
    columns["tokens"] = pa.array([row.tokens for row in rows], pa.list_(pa.int64()))
    table = pa.table(columns).replace_schema_metadata(
        {"measures": "1", "origin_unix_s": repr(origin_unix), "window_start_s": repr(window.start), "window_end_s": repr(window.end)}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)
