"""What the committed records of two H200s say about starts, noise and costs: the figures behind conf/engine/simulated_h200.yaml."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.docs.published import Published, metric

STUDY = Published(Path(__file__).resolve().parents[3] / "experiments" / "h200_allreduce" / "results", "allreduce-x2")
STREAMS = {1: "decode_c1", 16: "decode_c16", 64: "decode_c64"}
STAGES = ("bind", "distributed", "weights", "graphs", "warmup")


def lines(name: str) -> list[dict[str, Any]]:
    return STUDY.lines(name)


def served(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [record for record in records if record["outcome"] == "ok" and record["phases"]]


def spread_pct(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.mean(values)


def warm_starts() -> list[Mapping[str, Any]]:
    """Served launches whose caches were warm: all but those that compiled for minutes."""
    records = served(lines("noise.jsonl")) + served(lines("launches.jsonl"))
    middle = statistics.median(record["stages"]["start"] for record in records)
    return [record for record in records if record["stages"]["start"] < 3 * middle]


def expected() -> dict[str, Any]:
    """The simulation's switches as the records give them."""
    starts = warm_starts()
    load = statistics.median(record["stages"]["start"] for record in starts)
    stages = {name: statistics.median(record["stages"][f"start_{name}"] for record in starts) for name in STAGES}
    first, *later = served(lines("noise.jsonl"))
    stall = (
        metric(first, "decode_c16", "ttft_p99_ms") - statistics.median(metric(each, "decode_c16", "ttft_p99_ms") for each in later)
    ) / 1e3
    probe = json.loads((STUDY.folder / "probe.json").read_text())["algorithms"]
    fits = {name: probe[name]["fit"] for name in ("nccl", "nccl_graph")}
    arms = lines("launches.jsonl")
    tpot = {
        arm: statistics.mean(metric(each, "decode_c16", "tpot_p50_ms") for each in served(arms) if each["arm"] == arm)
        for arm in ("baseline", "custom_all_reduce=off")
    }
    size, calls = 16 * 2048 * 2, 2 * 24
    through_nccl = fits["nccl_graph"]["alpha_us"] + size / (fits["nccl_graph"]["gb_s"] * 1e3)  # two ranks: the ring's factor is 1
    custom = through_nccl - (tpot["custom_all_reduce=off"] - tpot["baseline"]) * 1e3 / calls
    return {
        "load_s": load,
        "stage_share": {name: seconds / load for name, seconds in stages.items()},
        "decode_noise_pct": {rows: spread_pct([metric(each, phase, "tpot_p50_ms") for each in later]) for rows, phase in STREAMS.items()},
        "prefill_noise_pct": statistics.median(
            spread_pct([metric(each, phase, "ttft_p50_ms") for each in later]) for phase in STREAMS.values()
        ),
        "cold_stall_s": stall,
        "compute": {
            "alpha_us.nccl": fits["nccl"]["alpha_us"],
            "gb_s.nccl": fits["nccl"]["gb_s"],
            "alpha_us.nccl_graph": fits["nccl_graph"]["alpha_us"],
            "gb_s.nccl_graph": fits["nccl_graph"]["gb_s"],
            "alpha_us.custom": custom,
        },
    }


def baseline_ms(name: str) -> dict[int, float]:
    """Median of a metric over the baseline's launches, by streams."""
    records = [record for record in served(lines("launches.jsonl")) if record["arm"] == "baseline"]
    return {rows: statistics.median(metric(record, phase, name) for record in records) for rows, phase in STREAMS.items()}
