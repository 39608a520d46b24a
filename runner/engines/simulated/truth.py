"""The true relative effects of a simulated study, from the same scheduler and cost model that its servers run, without noise.

Written to the study's truth.json so that verdicts can be checked. No code that judges may import this (a test holds it to that)."""

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.engines.simulated.launch import Launch, launch_of
from runner.engines.simulated.noise import no_noise
from runner.engines.simulated.options import Refused
from runner.engines.simulated.prefix import PrefixCache
from runner.engines.simulated.scheduler import Job, Scheduler
from runner.records.metrics import BY_NAME
from runner.records.plan import Arm
from runner.spec.engine import EngineSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from runner.spec.workload import Lengths, PhaseSpec

ROUNDS = 3  # of a closed loop, the first is left out
TURNAROUND_S = 0.0005  # of a client between the last token and its next request
STAGGER_S = 0.00005  # between the requests that a client sends at once
REQUESTS_AT_MOST = 300


@dataclass
class Seen:
    """One request's times, virtual seconds."""

    sent: float
    first: float = math.nan
    last: float = math.nan
    tokens: int = 0
    prompt: int = 0


def true_effects(
    arms: Sequence[Arm],
    phases: Mapping[str, PhaseSpec],
    node: NodeSpec,
    model: ModelSpec,
    engine: EngineSpec,
    baseline: str | None = None,
) -> dict[str, Any]:
    """For every arm: what is in force, or its refusal; for every phase and metric the noise-free value, its ratio to the baseline
    and the true `effect_pct` (positive is an improvement, as in decision.json). `baseline`: an arm's name, default the first.

    {"baseline", "version", "arms": {arm: {"refused", "in_force", "phases": {phase: {metric: {"value", "ratio", "effect_pct"}}}}}}"""
    launches = {arm.name: _launch(arm, node, model, engine) for arm in arms}
    reference = baseline or arms[0].name
    known: list[tuple[Launch, dict[str, dict[str, float]]]] = []
    values: dict[str, dict[str, dict[str, float]]] = {}
    for name, launch in launches.items():
        if isinstance(launch, Launch) and launch.decision.refusal is None and launch.profiled_tokens > 0:
            same = next((found for other, found in known if other.cost == launch.cost and other.limits == launch.limits), None)
            if same is None:
                same = {phase: phase_values(launch, spec, f"{phase}/{spec.concurrency}") for phase, spec in phases.items()}
                known.append((launch, same))
            values[name] = same
    base = values.get(reference, {})
    return {
        "baseline": reference,
        "version": engine.version,
        "arms": {name: _arm(launch, values.get(name, {}), base) for name, launch in launches.items()},
    }


def _launch(arm: Arm, node: NodeSpec, model: ModelSpec, engine: EngineSpec) -> Launch | Refused:
    order = {
        "arm": arm.name,
        "levels": arm.levels,
        "options": arm.options,
        "env": arm.env,
        "patches": arm.patches,
        "launch_index": 0,
        "block": 0,
        "engine": engine.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "node": node.model_dump(mode="json"),
    }
    try:
        return launch_of(order)
    except Refused as refused:
        return refused


def _arm(launch: Launch | Refused, values: Mapping[str, Mapping[str, float]], base: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    if isinstance(launch, Refused):
        return {"refused": launch.sentence, "in_force": [], "phases": {}}
    refusal = launch.decision.refusal
    phases = {
        phase: {name: _entry(name, value, base.get(phase, {}).get(name, math.nan)) for name, value in metrics.items()}
        for phase, metrics in values.items()
    }
    return {"refused": refusal.line if refusal else None, "in_force": list(launch.decision.force.names), "phases": phases}


def _entry(name: str, value: float, base: float) -> dict[str, float | None]:
    ratio = value / base if base and math.isfinite(base) else math.nan
    sign = 1 if BY_NAME[name].higher_is_better else -1
    known = math.isfinite(ratio)
    return {"value": value, "ratio": ratio if known else None, "effect_pct": sign * 100 * (ratio - 1) + 0.0 if known else None}


def phase_values(launch: Launch, phase: PhaseSpec, seed: str) -> dict[str, float]:
    """Noise-free metrics of one phase (names of records/metrics.py), in the time scale of the simulation."""
    seen = drive(launch, phase, seed)
    scale = float(launch.simulation["time_scale"])
    if phase.arrival == "closed" and phase.concurrency > 1:
        seen = seen[phase.concurrency :]
    whole = [one for one in seen if one.tokens and math.isfinite(one.last)]
    if not whole:
        return {}
    ttft = [one.first - one.sent for one in whole]
    tpot = [(one.last - one.first) / (one.tokens - 1) for one in whole if one.tokens > 1]
    e2e = [one.last - one.sent for one in whole]
    span = max(one.last for one in whole) - min(one.sent for one in whole)
    found = {
        "ttft_p50_ms": _percentile(ttft, 50) * 1e3 * scale,
        "ttft_p99_ms": _percentile(ttft, 99) * 1e3 * scale,
        "e2e_p50_ms": _percentile(e2e, 50) * 1e3 * scale,
        "e2e_p99_ms": _percentile(e2e, 99) * 1e3 * scale,
        "output_tok_s": sum(one.tokens for one in whole) / span / scale,
        "input_tok_s": sum(one.prompt for one in whole) / span / scale,
        "request_s": len(whole) / span / scale,
    }
    if tpot:
        found |= {"tpot_p50_ms": _percentile(tpot, 50) * 1e3 * scale, "tpot_p99_ms": _percentile(tpot, 99) * 1e3 * scale}
    return {name: round(value, 6) for name, value in found.items() if math.isfinite(value)}


def drive(launch: Launch, phase: PhaseSpec, seed: str) -> list[Seen]:
    """One phase in virtual time. Requests in the order they were sent; lengths and arrivals come from `seed` alone."""
    draw = random.Random(f"truth/{seed}")
    scheduler = Scheduler(launch.limits, launch.cost, no_noise(), PrefixCache(phase.shared_prefix > 0))
    scale = float(launch.simulation["time_scale"])
    turnaround, stagger = TURNAROUND_S / scale, STAGGER_S / scale
    closed = phase.arrival == "closed"
    count = max(phase.concurrency * ROUNDS, 4) if closed else max(8, min(REQUESTS_AT_MOST, round((phase.rate or 1.0) * phase.seconds)))
    arrivals: list[tuple[float, int]] = []
    if closed:
        arrivals = [(place * stagger, place) for place in range(min(phase.concurrency, count))]
    else:
        now = 0.0
        for place in range(count):
            arrivals.append((now / scale, place))
            now += draw.gammavariate(phase.burstiness, 1 / (phase.burstiness * (phase.rate or 1.0)))
    heapq.heapify(arrivals)
    lengths = [(_length(phase.input, draw), _length(phase.output, draw)) for _ in range(count)]
    seen: list[Seen] = []
    sent = len(arrivals)
    now = 0.0

    def take(until: float) -> None:
        while arrivals and arrivals[0][0] <= until:
            when, place = heapq.heappop(arrivals)
            prompt, output = lengths[place]
            one = Seen(sent=when, prompt=prompt)
            seen.append(one)
            scheduler.add(Job(_ids(phase, place, prompt), output, one))

    while True:
        take(now)
        step = scheduler.next_step()
        if step is None:
            if not arrivals:
                return seen
            now = arrivals[0][0]
            continue
        now += step.seconds
        take(now)
        ended = 0
        for job, tokens in scheduler.finish(step):
            one = job.sink
            assert isinstance(one, Seen)
            if not one.tokens:
                one.first = now
            one.last = now
            one.tokens += tokens
            if job.done and closed and sent < count:
                heapq.heappush(arrivals, (now + turnaround + ended * stagger, sent))
                sent += 1
                ended += 1


def _ids(phase: PhaseSpec, place: int, length: int) -> Sequence[int]:
    own = range(1_000_000 * (place + 1), 1_000_000 * (place + 1) + length)
    if not phase.shared_prefix:
        return own
    shared = min(phase.shared_prefix, length)
    group = place % phase.prefix_groups
    return [*range(10_000 * group, 10_000 * group + shared), *own[shared:]]


def _length(lengths: Lengths, draw: random.Random) -> int:
    if lengths.kind == "fixed":
        return lengths.value
    if lengths.kind == "uniform":
        return draw.randint(lengths.low, lengths.high)
    return int(max(lengths.low, min(lengths.high, lengths.value * math.exp(draw.gauss(0, lengths.sigma)))))


def _percentile(values: Sequence[float], q: float) -> float:
    """Linear between order statistics."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
