"""TTFT and TPOT of single requests for the distribution plots, from the request tables of valid phases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.records.paths import StudyPaths
from runner.records.schema import LaunchRecord

MOST_PER_ARM = 20000


def request_samples(
    study: StudyPaths, launches: Sequence[LaunchRecord], phase: str, arms: Sequence[str]
) -> tuple[dict[str, dict[str, list[float]]], bool]:
    """`ttft`/`tpot` -> arm -> milliseconds, and whether they are requests (else launch medians, where no table is there)."""
    requests: dict[str, dict[str, list[float]]] = {"ttft": {}, "tpot": {}}
    medians: dict[str, dict[str, list[float]]] = {"ttft": {}, "tpot": {}}
    for record in launches:
        found = record.phase(phase)
        if record.arm not in arms or found is None or not found.valid or record.purpose in ("prime", "screen", "smoke"):
            continue
        for name in medians:
            if (value := found.metrics.get(f"{name}_p50_ms")) is not None:
                medians[name].setdefault(record.arm, []).append(value)
        relative = found.artifacts.get("requests")
        if relative is not None and (study.folder / relative).is_file():
            for name, values in read_samples(study.folder / relative).items():
                kept = requests[name].setdefault(record.arm, [])
                kept += values[: MOST_PER_ARM - len(kept)]
    if any(values for by_arm in requests.values() for values in by_arm.values()):
        return requests, True
    return medians, False


def read_samples(path: Path) -> dict[str, list[float]]:
    """TTFT and TPOT in ms of the counted requests of one table; empty lists for a table that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=None)
    except (OSError, pa.ArrowException):
        return {"ttft": [], "tpot": []}
    columns: Mapping[str, list[Any]] = {
        name: table.column(name).to_pylist() for name in ("counted", "sent_s", "chunk_s", "tokens") if name in table.column_names
    }
    if {"sent_s", "chunk_s", "tokens"} - set(columns):
        return {"ttft": [], "tpot": []}
    counted = columns.get("counted") or [True] * table.num_rows
    result: dict[str, list[float]] = {"ttft": [], "tpot": []}
    for is_counted, sent, chunks, tokens in zip(counted, columns["sent_s"], columns["chunk_s"], columns["tokens"], strict=True):
        if not is_counted or sent is None or not chunks:
            continue
        result["ttft"].append((chunks[0] - sent) * 1000)
        rest = tokens[-1] - tokens[0]
        if rest > 0:
            result["tpot"].append((chunks[-1] - chunks[0]) / rest * 1000)
    return result
