"""/metrics in Prometheus' text, with SGLang's names, and the histograms behind it."""

import bisect
import os
import time

from runner.engines.simulated.launch import Launch
from runner.engines.simulated.scheduler import Scheduler

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
GAP = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.010,
    0.015,
    0.020,
    0.025,
    0.030,
    0.035,
    0.040,
    0.060,
    0.080,
    0.100,
    0.200,
    0.400,
    0.600,
    0.800,
    1,
    2,
    4,
    6,
    8,
)
E2E = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)


class Histogram:
    """Cumulative buckets."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.edges, value)] += times
        self.sum += value * times
        self.count += times

    def text(self, name: str, about: str, labels: str) -> list[str]:
        lines = [f"# HELP {name} {about}", f"# TYPE {name} histogram"]
        lines.append(f"{name}_sum{{{labels}}} {self.sum}")
        total = 0
        for edge, count in zip((*(str(float(edge)) for edge in self.edges), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{edge}",{labels}}} {float(total)}')
        lines.append(f"{name}_count{{{labels}}} {float(self.count)}")
        return lines


class Measures:
    """What requests and passes leave behind."""

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT)
        self.gap = Histogram(GAP)
        self.e2e = Histogram(E2E)
        self.queue = Histogram(TTFT)
        self.gen_throughput = 0.0
        self.graph = False
        # how well the process keeps its own times (for those who doubt a simulated figure)
        self.lag_max = 0.0
        self.lag_sum = 0.0
        self.steps = 0
        self.slips = 0

    def finished(self, arrived: float, admitted: float, first: float, last: float, tokens: int) -> None:
        """One request, times monotonic."""
        self.ttft.observe(first - arrived)
        self.e2e.observe(last - arrived)
        self.queue.observe(max(0.0, admitted - arrived))
        if tokens > 1:
            self.gap.observe((last - first) / (tokens - 1), tokens - 1)

    def lag(self, seconds: float) -> None:
        self.steps += 1
        self.lag_sum += seconds
        self.lag_max = max(self.lag_max, seconds)


def metrics_text(launch: Launch, scheduler: Scheduler, measures: Measures, model_name: str) -> str:
    """The whole body."""
    plain = f'engine_type="unified",model_name="{model_name}"'
    rank = f'engine_type="unified",model_name="{model_name}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    totals, limits = scheduler.totals, scheduler.limits
    lines: list[str] = []

    def one(name: str, kind: str, about: str, value: float, labels: str = rank) -> None:
        lines.extend([f"# HELP sglang:{name} {about}", f"# TYPE sglang:{name} {kind}", f"sglang:{name}{{{labels}}} {float(value)}"])

    one("max_total_num_tokens", "gauge", "Maximum total number of tokens in the KV cache pool.", limits.pool_tokens)
    one("context_len", "gauge", "Maximum context length.", launch.model.max_context)
    one("num_running_reqs", "gauge", "The number of running requests.", len(scheduler.running))
    one("num_queue_reqs", "gauge", "The number of requests in the waiting queue.", len(scheduler.waiting))
    one("num_used_tokens", "gauge", "The number of used tokens.", scheduler.used_tokens)
    one("token_usage", "gauge", "The token usage.", round(scheduler.used_tokens / max(1, limits.pool_tokens), 4))
    one("gen_throughput", "gauge", "The generation throughput (token/s).", measures.gen_throughput)
    one("cache_hit_rate", "gauge", "The prefix cache hit rate.", totals.cached / max(1, totals.prompt))
    one("num_retracted_reqs", "gauge", "The number of retracted requests.", sum(job.retractions > 0 for job in scheduler.waiting))
    one("spec_accept_length", "gauge", "Mean acceptance length of speculative decoding.", 0.0)
    one("new_token_ratio", "gauge", "The new token ratio.", round(scheduler.ratio, 4))
    one("is_cuda_graph", "gauge", "Whether the batch is using CUDA graph.", measures.graph)
    one("utilization", "gauge", "The utilization.", len(scheduler.running) / max(1, limits.max_running))
    one("prompt_tokens_total", "counter", "Number of prefill tokens processed.", totals.prompt, plain)
    one("generation_tokens_total", "counter", "Number of generation tokens processed.", totals.generated, plain)
    one("num_requests_total", "counter", "Number of requests processed.", measures.e2e.count, plain)
    one("num_aborted_requests_total", "counter", "Number of requests aborted.", totals.aborted, plain)
    one("num_retracted_requests_total", "counter", "Number of retracted requests.", totals.retracted, plain)
    one("cached_tokens_total", "counter", "Number of cached prompt tokens by source.", totals.cached, f'cache_source="device",{plain}')
    lines.append("# HELP sglang:cuda_graph_passes_total Total number of forward passes categorized by CUDA graph.")
    lines.append("# TYPE sglang:cuda_graph_passes_total counter")
    for mode, value in (
        ("prefill_none", totals.prefill_passes),
        ("decode_cuda_graph", totals.decode_graph),
        ("decode_none", totals.decode_eager),
    ):
        if value:
            lines.append(f'sglang:cuda_graph_passes_total{{mode="{mode}",{rank}}} {float(value)}')
    lines.append("# HELP sglang:realtime_tokens_total Total number of tokens processed (updated on each log interval).")
    lines.append("# TYPE sglang:realtime_tokens_total counter")
    for mode, value in (("prefill_compute", totals.prompt - totals.cached), ("prefill_cache", totals.cached), ("decode", totals.generated)):
        lines.append(f'sglang:realtime_tokens_total{{mode="{mode}",{rank}}} {float(value)}')
    lines += measures.ttft.text("sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.", plain)
    lines += measures.gap.text("sglang:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", plain)
    lines += measures.e2e.text("sglang:e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", plain)
    lines += measures.queue.text("sglang:queue_time_seconds", "Histogram of queueing time in seconds.", rank)
    one(
        "process_cpu_seconds_total",
        "counter",
        "Total CPU time consumed by this process (user + system)",
        sum(os.times()[:2]),
        'component="tokenizer"',
    )
    lines += [
        "# HELP simulated:step_lag_seconds_max Largest delay of a simulated pass against its own clock.",
        "# TYPE simulated:step_lag_seconds_max gauge",
        f"simulated:step_lag_seconds_max {measures.lag_max}",
        f"simulated:step_lag_seconds_sum {measures.lag_sum}",
        f"simulated:steps_total {measures.steps}",
        f"simulated:clock_slips_total {measures.slips}",
        f"simulated:scraped_at {time.time()}",
    ]
    return "\n".join(lines) + "\n"
