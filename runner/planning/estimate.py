"""What a study will cost, and which hypotheses its budget can resolve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config import Settings
from runner.planning.candidates import EXPECTED_INERT, EXPECTED_REFUSAL
from runner.planning.learned import Learned
from runner.planning.resolvable import could_see_pct, launch_noise_pct
from runner.records.metrics import metric
from runner.records.plan import Arm, Estimate, Hypothesis
from runner.spec.node import NodeSpec
from runner.spec.workload import PhaseSpec


@dataclass(frozen=True)
class Cost:
    """Seconds: likely, at least, at most."""

    likely: float
    low: float
    high: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.likely + other.likely, self.low + other.low, self.high + other.high)

    def times(self, count: float, low: float | None = None, high: float | None = None) -> "Cost":
        return Cost(self.likely * count, self.low * (count if low is None else low), self.high * (count if high is None else high))


@dataclass(frozen=True)
class LaunchCosts:
    """A launch without its load, cold (compiles) and warm, and the load of all phases."""

    cold: Cost
    warm: Cost
    load: Cost
    source: str


# Until launches on the node teach better: ready and stop together. Two H200s, tp 2, a small MoE: ready in 27 to 37 s warm, 100 to 213 s
# where kernels compile, stop 5 to 9 s (experiments/h200_allreduce/results).
_READY_WARM_S, _READY_COLD_S = Cost(38, 33, 90), Cost(150, 100, 600)
# Weights from disk, GB a second: a local NVMe drive likely, page cache at best, a network disk at worst. Not measured here.
_WEIGHTS_GB_S = Cost(1.0, 4.0, 0.15)
# The engine on a CPU with random weights: ready after 20 to 40 s, the very first start up to 75 s, stop about 5 s.
_CPU_WARM_S, _CPU_COLD_S = Cost(35, 20, 50), Cost(60, 30, 80)
_SIMULATED_S = Cost(1.0, 0.5, 2.0)
_CHECKS_S = Cost(1.5, 0.5, 5.0)
_PHASE_OVERHEAD_S = 0.3


def launch_costs(settings: Settings, engine_kind: str, phases: Mapping[str, PhaseSpec], learned: Learned | None) -> LaunchCosts:
    """Launch costs from the node's records where there are some, else from assumptions, which `source` says."""
    load = Cost(0, 0, 0)
    for phase in phases.values():
        load += phase_cost(phase, settings.protocol.phase_scale)
    cold, warm, source = _assumed(settings, engine_kind)
    if learned is not None and (learned.warm_s is not None or learned.cold_s is not None):
        if learned.warm_s is not None:
            warm = _learned_cost(learned.warm_s, learned.warm_range_s)
        if learned.cold_s is not None:
            cold = _learned_cost(learned.cold_s, learned.cold_range_s)
        if learned.warm_s is None:
            warm = Cost(min(warm.likely, cold.likely), min(warm.low, cold.low), cold.high)
        source = learned.source or "records of this node"
    return LaunchCosts(cold, warm, load, source)


def phase_cost(phase: PhaseSpec, scale: float) -> Cost:
    """One phase: its window, and a warm-up that ends early once the shape is steady (at worst its whole budget)."""
    window, budget = phase.seconds * scale, phase.warmup_seconds * scale
    return Cost(window + budget * 0.5 + _PHASE_OVERHEAD_S, window * 0.8 + budget * 0.2, window * 1.5 + budget + 1)


def estimate(
    settings: Settings, engine_kind: str, arms: Sequence[Arm], blocks: Sequence[Sequence[str]], costs: LaunchCosts
) -> tuple[Estimate, tuple[str, ...]]:
    """(estimate, notes). Likely: `min_blocks` of every arm, one launch of an arm that is expected to be INERT or refused; at least: the same
    without confirmation; at most: every planned block. GPU minutes count all GPUs of the node (a node without GPUs counts as one)."""
    protocol = settings.protocol
    one_launch = {arm.name for arm in arms if any(mark in text for text in arm.expect for mark in (EXPECTED_INERT, EXPECTED_REFUSAL))}
    planned = blocks[: protocol.min_blocks]
    likely = sum(1 for row in planned for name in row if name not in one_launch) + len(one_launch)
    most = sum(len(row) for row in blocks)
    real = engine_kind in ("sglang", "container")
    confirming = 2 * protocol.confirm_blocks if protocol.confirm and len(arms) > 1 and not settings.aa else 0
    unmeasured = (len(arms) if protocol.prime and real else 0) + (len(arms) if protocol.screen and real else 0)
    measured = (costs.warm + costs.load).times(likely, likely, most) + (costs.warm + costs.load).times(confirming, 0, confirming)
    extra = costs.cold.times(unmeasured)
    if not protocol.prime and real:
        compiling = Cost(costs.cold.likely - costs.warm.likely, 0, max(0.0, costs.cold.high - costs.warm.low))
        extra = extra + compiling.times(len(arms), 0)
    total = measured + extra
    gpus = gpu_count(settings.node)
    result = Estimate(
        estimate=round(total.likely / 60 * gpus, 2),
        low=round(total.low / 60 * gpus, 2),
        high=round(total.high / 60 * gpus, 2),
        wall_minutes=round(total.likely / 60, 2),
        launches=likely + unmeasured + confirming,
        launch_cold_s=round(costs.cold.likely, 1),
        launch_warm_s=round(costs.warm.likely, 1),
        source=costs.source,
    )
    notes = (
        [f"counted with one launch, since they are expected to be closed after it: {', '.join(sorted(one_launch))}"] if one_launch else []
    )
    return result, tuple(notes)


def gpu_count(node: NodeSpec) -> int:
    return max(1, node.gpus)


def not_resolvable(
    settings: Settings,
    hypotheses: Sequence[Hypothesis],
    arms: Sequence[Arm],
    costs: LaunchCosts,
    noise: Mapping[str, Any] | None,
    engine_kind: str,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what the study cannot resolve, notes). Per phase and metric the smallest effect that the affordable blocks show with 90 %
    power at the family's error, against the margin; without a noise floor the notes say that nothing can be foreseen."""
    protocol = settings.protocol
    affordable = protocol.max_blocks
    blocked: list[str] = []
    if protocol.gpu_minutes is not None:
        real = engine_kind in ("sglang", "container")
        gpus = gpu_count(settings.node)
        prime = costs.cold.likely * len(arms) if protocol.prime and real else 0.0
        block = (costs.warm.likely + costs.load.likely) * len(arms)
        affordable = min(affordable, int(max(0.0, protocol.gpu_minutes * 60 / gpus - prime) // max(block, 1e-9)))
        if affordable < protocol.min_blocks:
            return (
                f"every hypothesis: {protocol.gpu_minutes:g} GPU minutes pay for {affordable} of {protocol.min_blocks} blocks of "
                f"{len(arms)} arms (a block costs about {block / 60 * gpus:.3g}); arms closed early leave more",
            ), ()
    pairs = dict.fromkeys((hypothesis.phase, hypothesis.metric) for hypothesis in hypotheses)
    if noise is None:
        note = (
            "there is no noise floor for this node, so what the study can resolve is not foreseen; run +experiment=noise_floor on it first"
        )
        return (), (note,) if pairs else ()
    unknown: list[str] = []
    for phase, name in pairs:
        sigma = launch_noise_pct(noise, phase, name)
        if sigma is None:
            unknown.append(f"{phase} {name}")
            continue
        margin = getattr(protocol.margins, metric(name).margin or "tpot_pct")
        seen = could_see_pct(sigma, affordable, max(1, len(arms) - 1), len(hypotheses), protocol.alpha)
        if seen > margin:
            blocked.append(f"{phase} {name}: {affordable} blocks show effects from {seen:.2g} % on, the margin is {margin:g} %")
    notes = [f"the noise floor of this node does not hold: {', '.join(unknown)}"] if unknown else []
    return tuple(blocked), tuple(notes)


def _assumed(settings: Settings, engine_kind: str) -> tuple[Cost, Cost, str]:
    node, model = settings.node, settings.model
    if engine_kind == "simulated":
        load = settings.engine.simulation.load_s
        warm = _SIMULATED_S + Cost(load, load, load)
        return warm, warm, "assumed for the simulated engine; nothing learned on this node yet"
    if engine_kind == "attached":
        return Cost(0, 0, 0), Cost(0, 0, 0), "an attached server is not started"
    if node.gpus == 0:
        return _CPU_COLD_S + _CHECKS_S, _CPU_WARM_S + _CHECKS_S, "assumed for the engine on a CPU; nothing learned on this node yet"
    size = 0.0 if model.load_format == "dummy" else model.weight_gb
    weights = Cost(size / _WEIGHTS_GB_S.likely, size / _WEIGHTS_GB_S.low, size / _WEIGHTS_GB_S.high)
    source = f"assumed (weights at {_WEIGHTS_GB_S.likely:g} GB/s, start as on two H200s); nothing learned on this node yet"
    return _READY_COLD_S + _CHECKS_S + weights, _READY_WARM_S + _CHECKS_S + weights, source


def _learned_cost(likely: float, span: tuple[float, float] | None) -> Cost:
    low, high = span or (likely, likely)
    return Cost(likely, low, max(high, likely))
