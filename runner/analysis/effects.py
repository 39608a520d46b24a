"""Main effects and two-factor interactions over the arms that could be run.

A main effect is the mean, over pairs of arms that differ in this factor alone (and in factors that exist only under it), of the
difference of log values; an interaction the mean, over squares of four arms, of the difference of differences (Wu and Hamada
2009, ch. 4, written as contrasts of arm estimates, so that infeasible combinations simply have no pair). Where a fraction holds
no pair, halves are compared and every one- or two-factor term with the same contrast is named as an alias. Intervals are
simultaneous over all terms of all (phase, metric) (Sidak), from the pooled launch variance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from runner.analysis.blockfit import fit_blocks
from runner.analysis.dunnett import sidak_level
from runner.analysis.hypotheses import is_higher_better, margin_of
from runner.analysis.noisy_arms import set_aside
from runner.analysis.observations import block_table
from runner.analysis.variance import launch_variance
from runner.records.decision import Effect
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Contrast:
    """`weights` over arms (baseline included), summing to 0."""

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    weights: tuple[float, ...]
    aliases: tuple[str, ...] = ()


def effects(plan: Plan, launches: Sequence[LaunchRecord], protocol: Protocol, feasible: Iterable[str]) -> list[Effect]:
    """`feasible`: names of arms that count (the baseline and MEASURED ones). Fewer than two give nothing."""
    wanted = set(feasible)
    levels = {plan.baseline: plan.baseline_levels} | {arm.name: arm.levels for arm in plan.arms if arm.name != plan.baseline}
    names = [plan.baseline, *(name for name in levels if name != plan.baseline and name in wanted)]
    if len(names) < 2:
        return []
    terms = contrasts([levels[name] for name in names], plan.baseline_levels)
    keys = list(dict.fromkeys((item.phase, item.metric) for item in plan.hypotheses))
    level = sidak_level(protocol.alpha, max(len(terms) * len(keys), 1))
    found = []
    for phase, metric in keys:
        table = block_table(launches, phase, metric, names)
        if not table.blocks or not table.mask[:, 0].any():
            continue
        data = (table.values[None], table.mask[None], table.slots[None])
        refit = partial(fit_blocks, slope=False)
        fit, quiet, aside = set_aside(*data, refit(*data), refit, floor=False)
        spread = launch_variance(quiet, None, aside)
        if not np.isfinite(spread.variance[0]).all():
            continue  # one launch of each arm: nothing says how much launches differ
        counts = fit.arm_n[0]
        sign = 1 if is_higher_better(metric) else -1
        for term in terms:
            weights = np.array(term.weights)
            used = weights != 0
            # The noisiest of the arms that the term compares speaks for it.
            variance, df = (float(pick(values[0][used[1:]])) for pick, values in ((np.max, spread.variance), (np.min, spread.df)))
            if df <= 0 or np.any(counts[used] == 0) or not np.isfinite(fit.unscaled[0][used[1:]]).all():
                continue
            estimate = float(weights[1:] @ fit.estimate[0])
            error = float(np.sqrt(max(weights[1:] @ fit.covariance[0] @ weights[1:] * variance, 0.0)))
            half = float(-stdtrit(df, level / 2)) * error
            low, high = sorted(sign * 100 * float(np.expm1(min(estimate + shift, 50.0))) for shift in (-half, half))
            found.append(
                Effect(
                    factors=term.factors,
                    levels=term.levels,
                    phase=phase,
                    metric=metric,
                    effect_pct=sign * 100 * float(np.expm1(estimate)),
                    low_pct=low,
                    high_pct=high,
                    aliases=term.aliases,
                    exploratory=bool(len(set(counts[used])) > 1),
                )
            )
    return found


def contrasts(arms: Sequence[Mapping[str, str]], baseline: Mapping[str, str]) -> list[Contrast]:
    """All estimable main effects (level against reference) and two-factor interactions of these arms' levels."""
    factors = list(dict.fromkeys(factor for levels in arms for factor in levels))
    reference = {factor: baseline.get(factor) or next(levels[factor] for levels in arms if factor in levels) for factor in factors}
    other = {
        factor: [level for level in dict.fromkeys(levels[factor] for levels in arms if factor in levels) if level != reference[factor]]
        for factor in factors
    }
    mains = [(factor, level) for factor in factors for level in other[factor]]
    found = []
    for factor, level in mains:
        weights = _pairs(arms, factor, level, reference[factor])
        aliases: tuple[str, ...] = ()
        if weights is None:
            weights = _halves(arms, factor, level, reference[factor])
            aliases = _aliases(arms, (factor, level), mains, reference)
        if weights is not None:
            found.append(Contrast((factor,), (level,), tuple(weights), aliases))
    for (f, a), (g, b) in combinations(mains, 2):
        if f != g:
            square = _squares(arms, (f, a, reference[f]), (g, b, reference[g]))
            if square is not None:
                found.append(Contrast((f, g), (a, b), tuple(square)))
    return found


def _match(one: Mapping[str, str], two: Mapping[str, str], free: set[str]) -> bool:
    """Equal but for `free` factors and for factors that only one of them has."""
    return all(one[factor] == two[factor] for factor in one.keys() & two.keys() if factor not in free)


def _pairs(arms: Sequence[Mapping[str, str]], factor: str, level: str, reference: str) -> Array | None:
    weights, pairs = np.zeros(len(arms)), 0
    for i, one in enumerate(arms):
        for j, two in enumerate(arms):
            if one.get(factor) == level and two.get(factor) == reference and _match(one, two, {factor}):
                weights[i] += 1
                weights[j] -= 1
                pairs += 1
    return weights / pairs if pairs else None


def _squares(arms: Sequence[Mapping[str, str]], f: tuple[str, str, str], g: tuple[str, str, str]) -> Array | None:
    """Difference of differences over arms equal in every other factor, all four of them present."""
    corners: dict[frozenset[tuple[str, str]], dict[tuple[str, str], int]] = {}
    for index, levels in enumerate(arms):
        if levels.get(f[0]) in f[1:] and levels.get(g[0]) in g[1:]:
            rest = frozenset((factor, level) for factor, level in levels.items() if factor not in (f[0], g[0]))
            corners.setdefault(rest, {})[(levels[f[0]], levels[g[0]])] = index
    weights, squares = np.zeros(len(arms)), 0
    for four in corners.values():
        if len(four) == 4:
            weights[four[(f[1], g[1])]] += 1
            weights[four[(f[2], g[1])]] -= 1
            weights[four[(f[1], g[2])]] -= 1
            weights[four[(f[2], g[2])]] += 1
            squares += 1
    return weights / squares if squares else None


def _halves(arms: Sequence[Mapping[str, str]], factor: str, level: str, reference: str) -> Array | None:
    high = np.array([levels.get(factor) == level for levels in arms], dtype=float)
    low = np.array([levels.get(factor) == reference for levels in arms], dtype=float)
    return high / high.sum() - low / low.sum() if high.any() and low.any() else None


def _sign(arms: Sequence[Mapping[str, str]], factor: str, level: str) -> Array:
    return np.array([1.0 if levels.get(factor) == level else -1.0 for levels in arms])


def _aliases(
    arms: Sequence[Mapping[str, str]], term: tuple[str, str], mains: Sequence[tuple[str, str]], reference: Mapping[str, str]
) -> tuple[str, ...]:
    """One- and two-factor terms that go up and down with this one over the arms at hand."""
    own = _sign(arms, *term)
    columns = {f"{factor}={level}": _sign(arms, factor, level) for factor, level in mains if factor != term[0]}
    columns |= {
        f"{f}={a} x {g}={b}": _sign(arms, f, a) * _sign(arms, g, b)
        for (f, a), (g, b) in combinations(mains, 2)
        if term[0] not in (f, g) and f != g
    }
    return tuple(name for name, column in columns.items() if abs(float(own @ column)) > 0.99 * len(arms))


_NAMES = {"tpot_p50_ms": "TPOT", "ttft_p50_ms": "TTFT", "output_tok_s": "throughput", "tpot_p99_ms": "TPOT p99", "ttft_p99_ms": "TTFT p99"}


def metric_word(metric: str) -> str:
    """How a sentence calls a metric."""
    return _NAMES.get(metric, metric.removesuffix("_ms"))


def place(phase: str, concurrency: Mapping[str, int | None]) -> str:
    """`at one stream`, `at 128 streams`, else the phase's name."""
    streams = concurrency.get(phase)
    if streams is None or "prefill" in phase:
        return f"in {phase}"
    return "at one stream" if streams == 1 else f"at {streams} streams"


def effect_sentences(found: Sequence[Effect], launches: Sequence[LaunchRecord], protocol: Protocol) -> list[str]:
    """One sentence a term: what it does where, in plain words. `nothing` is said only where the interval lies inside the margin. A main
    effect of a level that one arm alone has is that arm's own effect, which is said elsewhere."""
    streams = {phase.phase: phase.concurrency for launch in launches for phase in launch.phases}
    grouped: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Effect]] = {}
    for effect in found:
        grouped.setdefault((effect.factors, effect.levels), []).append(effect)
    sentences = []
    for (factors, levels), parts in grouped.items():
        having = {launch.arm for launch in launches if launch.levels.get(factors[0]) == levels[0]}
        if len(factors) == 1 and len(having) == 1:
            continue
        said = [_part(effect, streams, protocol) for effect in parts]
        if len(factors) == 2 and all("nothing" in text or "not resolved" in text for text in said):
            continue
        name = " x ".join(factor if level in ("on", "true") else f"{factor}={level}" for factor, level in zip(factors, levels, strict=True))
        tail = f" (not told apart from {', '.join(parts[0].aliases)})" if parts[0].aliases else ""
        tail += " (exploratory: arms were stopped early)" if any(effect.exploratory for effect in parts) else ""
        kind = "main effect" if len(factors) == 1 else "interaction"
        sentences.append(f"{kind} of {name}, over the arms that have it: {', '.join(said)}{tail}")
    return sentences


def _part(effect: Effect, streams: Mapping[str, int | None], protocol: Protocol) -> str:
    where, margin = place(effect.phase, streams), margin_of(effect.metric, protocol)
    if effect.low_pct > 0 or effect.high_pct < 0:
        word = "better" if effect.effect_pct > 0 else "worse"
        return f"{metric_word(effect.metric)} {abs(effect.effect_pct):.1f} % {word} {where} (interval {effect.low_pct:+.1f} to {effect.high_pct:+.1f})"
    if effect.low_pct > -margin and effect.high_pct < margin:
        return f"nothing {where}"
    return f"not resolved {where} ({effect.low_pct:+.1f} to {effect.high_pct:+.1f})"
