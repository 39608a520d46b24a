"""Was the client fit to measure? Its own behaviour against limits that were fixed beforehand and are blind to the outcome."""

from collections.abc import Sequence

from runner.loadgen.measures import percentile
from runner.records.schema import ClientFitness, Counts
from runner.spec.protocol import Limits

NS_PER_MS = 1e6


def fitness(
    lags_ns: Sequence[int],
    stall_max_ns: int,
    cpu_share: float,
    asked_rate: float | None,
    achieved_rate: float | None,
    residual: float | None,
    first_request_s: float,
) -> ClientFitness:
    """Lags and stalls in ns, rates in 1/s. A lag is dispatch - due: the arrival's time in an open loop, the end of the
    stream's request before in a closed one."""
    lag = percentile([float(value) for value in lags_ns], 99) / NS_PER_MS if lags_ns else 0.0
    return ClientFitness(
        dispatch_lag_p99_ms=lag,
        loop_stall_max_ms=stall_max_ns / NS_PER_MS,
        cpu_share=cpu_share,
        asked_rate=asked_rate,
        achieved_rate=achieved_rate,
        littles_law_residual=residual,
        first_request_s=first_request_s,
    )


def unfit(client: ClientFitness, limits: Limits) -> list[str]:
    """Why the client was not fit; empty when it was."""
    reasons = []
    if client.dispatch_lag_p99_ms > limits.dispatch_lag_p99_ms:
        reasons.append(f"client: dispatch lag p99 {client.dispatch_lag_p99_ms:.1f} ms is over {limits.dispatch_lag_p99_ms:g} ms")
    if client.loop_stall_max_ms > limits.loop_stall_ms:
        reasons.append(f"client: its loop stood still for {client.loop_stall_max_ms:.0f} ms, over {limits.loop_stall_ms:g} ms")
    if client.cpu_share > limits.client_cpu_share:
        reasons.append(f"client: used {client.cpu_share:.0%} of a core, over {limits.client_cpu_share:.0%}")
    if client.asked_rate and client.achieved_rate is not None:
        error = abs(client.achieved_rate / client.asked_rate - 1)
        if error > limits.rate_error:
            reasons.append(
                f"client: sent {client.achieved_rate:.4g} req/s of {client.asked_rate:.4g} asked, off by {error:.1%} (limit {limits.rate_error:.1%})"
            )
    residual = client.littles_law_residual
    if residual is not None and residual > limits.littles_law_residual:
        reasons.append(f"load: Little's law is off by {residual:.0%}, over {limits.littles_law_residual:.0%}: the window is not steady")
    return reasons


def unserved(counts: Counts, cached_share: float | None, limits: Limits, cached_expected: bool) -> list[str]:
    """Why the server's answers make the phase invalid: failed, truncated, stopped early, lost tokens, cached prompts."""
    reasons = []
    if counts.sent == 0:
        return ["no request was sent"]
    bad = counts.failed + counts.truncated + counts.stopped_early + counts.lost_tokens
    if bad / counts.sent > limits.failed_share:
        parts = [
            f"{number} {word}"
            for number, word in (
                (counts.failed, "failed"),
                (counts.truncated, "ended without [DONE]"),
                (counts.stopped_early, "stopped early"),
                (counts.lost_tokens, "lost tokens"),
            )
            if number
        ]
        reasons.append(f"{', '.join(parts)} of {counts.sent} requests (limit {limits.failed_share:.1%})")
    if cached_share is not None and cached_share > limits.cached_share and not cached_expected:
        reasons.append(f"{cached_share:.1%} of the prompt tokens came from the cache (limit {limits.cached_share:.1%})")
    return reasons
