"""The registry of measured quantities: name, unit, direction, margin. Names carry their unit."""

from dataclasses import dataclass
from typing import Literal

MEASURES_VERSION = 1


@dataclass(frozen=True)
class Metric:
    """`higher_is_better` null: descriptive only, never a hypothesis. `margin` names the field of `Margins` it uses."""

    name: str
    unit: str
    higher_is_better: bool | None
    margin: Literal["tpot_pct", "throughput_pct", "ttft_pct"] | None
    meaning: str


METRICS: tuple[Metric, ...] = (
    Metric("tpot_p50_ms", "ms", False, "tpot_pct", "median over requests of (last - first) / (tokens - tokens in the first chunk)"),
    Metric("tpot_p99_ms", "ms", False, "tpot_pct", "99th percentile of TPOT over requests"),
    Metric("ttft_p50_ms", "ms", False, "ttft_pct", "median of first token - sent"),
    Metric("ttft_p99_ms", "ms", False, "ttft_pct", "99th percentile of first token - sent"),
    Metric("ttft_scheduled_p50_ms", "ms", False, "ttft_pct", "median of first token - scheduled (open loop: no coordinated omission)"),
    Metric("ttft_scheduled_p99_ms", "ms", False, "ttft_pct", "99th percentile of first token - scheduled"),
    Metric("chunk_gap_p50_ms", "ms", False, "tpot_pct", "median time between chunks of one request"),
    Metric("chunk_gap_p99_ms", "ms", False, "tpot_pct", "99th percentile of the time between chunks"),
    Metric("e2e_p50_ms", "ms", False, "tpot_pct", "median of last token - sent"),
    Metric("e2e_p99_ms", "ms", False, "tpot_pct", "99th percentile of last token - sent"),
    Metric("queue_wait_p99_ms", "ms", False, None, "99th percentile of sent - scheduled (client side)"),
    Metric("output_tok_s", "tok/s", True, "throughput_pct", "output tokens produced inside the steady window / its length"),
    Metric("input_tok_s", "tok/s", True, "throughput_pct", "prompt tokens of requests whose first token fell in the window / its length"),
    Metric("request_s", "1/s", True, "throughput_pct", "requests finished in the window / its length"),
    Metric("goodput_share", "", True, "throughput_pct", "share of sent requests that met every SLO"),
    Metric("goodput_req_s", "1/s", True, "throughput_pct", "sent requests that met every SLO / window"),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}


def metric(name: str) -> Metric:
    """Raises KeyError for a name that is not registered."""
    return BY_NAME[name]
