"""How a decision is put into words: one place for labels, numbers and order, shared by terminal, report and notes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from runner.records.decision import ArmResult, Decision, HypothesisResult, Spread
from runner.records.metrics import BY_NAME
from runner.records.night import Shift
from runner.records.plan import Cell, Plan

_ORDER = (
    "BASELINE",
    "REGRESSION",
    "IMPROVEMENT",
    "quiet",
    "learning",
    "BETTER",
    "MIXED",
    "UNRESOLVED",
    "SAME",
    "WORSE",
    "INERT",
    "BROKEN",
    "INVALID",
    "FAILED",
    "REJECTED",
)


NOT_MEASURED = "not measured"
INTERRUPTED = "interrupted; the same command goes on from here"  # the journal's event


def outcome(arm: ArmResult) -> str:
    """The one word that stands for an arm: the night's in a night, else its verdict where it was measured, else its status."""
    if arm.status == "INVALID" and arm.reason == NOT_MEASURED:
        return "not launched"
    return arm.night or arm.verdict or ("not judged" if arm.status == "MEASURED" else arm.status)


def ordered(decision: Decision) -> list[ArmResult]:
    """Baseline first, then by outcome from better to worse, larger mean effect first."""

    def key(arm: ArmResult) -> tuple[int, float, str]:
        word = "BASELINE" if arm.status == "BASELINE" else outcome(arm)
        return (_ORDER.index(word) if word in _ORDER else len(_ORDER), -(mean_effect(arm) or 0.0), arm.name)

    return sorted(decision.arms, key=key)


def mean_effect(arm: ArmResult) -> float | None:
    """Mean of the effects of the primary hypotheses, percent; None where there is none. A sort key, not an inference."""
    effects = [item.effect_pct for item in arm.hypotheses if item.effect_pct is not None and math.isfinite(item.effect_pct)]
    return sum(effects) / len(effects) if effects else None


def signed(value: float | None, digits: int = 1) -> str:
    """`+6.2`, `-0.4`, `0.0`, or `-` for a missing value."""
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits without an exponent where one reads better without: 0.3132, 13.61, 1,234."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def interval(item: HypothesisResult) -> str:
    """`+6.2 [5.4, 7.0]`; an unresolved one says what the study could have seen."""
    if item.effect_pct is None:
        return "-"
    if item.low_pct is None or item.high_pct is None:
        return signed(item.effect_pct)
    return f"{signed(item.effect_pct)} [{signed(item.low_pct)}, {signed(item.high_pct)}]"


def night_cell(decision: Decision, arm: ArmResult, phase: str, metric: str) -> str:
    """Tonight's value and, where it can be judged, its change against the accepted nights: `20.1 ms, -4.8 [-6.1, -3.4]`."""
    value = arm.values.get(phase, {}).get(metric)
    found = next((shift for shift in night_shifts(decision, arm) if (shift.quantity.phase, shift.quantity.metric) == (phase, metric)), None)
    parts = [f"{number(value)} {metric_unit(metric)}".strip()] if value is not None else []
    if found is not None:
        parts.append(f"{signed(found.change_pct)} [{signed(found.low_pct)}, {signed(found.high_pct)}]")
    return ", ".join(parts)


def night_shifts(decision: Decision, arm: ArmResult) -> tuple[Shift, ...]:
    return decision.night.of(arm.name) if decision.night is not None else ()


def night_done(decision: Decision) -> list[str]:
    """What a night did besides measuring: suspects launched again, arms that no longer serve, the nights it is compared with."""
    night = decision.night
    if night is None:
        return []
    lines = []
    if night.missing:
        lines.append(f"no valid launch tonight of: {', '.join(night.missing)}")
    if night.relaunched:
        lines.append(f"launched again the same night before this was said: {', '.join(night.relaunched)} (first look: {night.first_look})")
    if night.baseline_nights:
        lines.append(f"accepted nights: {len(night.baseline_nights)}, {night.baseline_nights[0]} to {night.baseline_nights[-1]}")
    return lines


def evidence_word(arm: ArmResult, baseline: Mapping[str, str]) -> str:
    """The weakest grade over the factors in which the arm differs from the baseline's levels (the baseline itself: over all of
    its own), or `-`."""
    changed = {factor for factor, level in arm.levels.items() if baseline.get(factor) != level} or set(arm.levels)
    grades = {item.grade for item in arm.evidence if item.factor in changed}
    return next((grade for grade in ("contradicted", "resolved", "observed") if grade in grades), "-")


def baseline_levels(decision: Decision) -> Mapping[str, str]:
    return next((arm.levels for arm in decision.arms if arm.name == decision.baseline), {})


def phase_word(phase: str) -> str:
    """`decode_c16` -> `c16`; other names stay. Short names fit in MLflow's columns."""
    return phase.removeprefix("decode_") if phase.startswith("decode_c") else phase


def metric_word(metric: str) -> str:
    """`tpot_p50_ms` -> `TPOT p50`."""
    words = metric.split("_")
    if words[-1] == "ms":
        words = words[:-1]
    if metric in ("output_tok_s", "input_tok_s", "request_s"):
        return {"output_tok_s": "output tok/s", "input_tok_s": "input tok/s", "request_s": "requests/s"}[metric]
    return " ".join(word.upper() if word in ("tpot", "ttft", "e2e") else word for word in words)


def metric_unit(metric: str) -> str:
    found = BY_NAME.get(metric)
    return found.unit if found else ""


def hypothesis_keys(decision: Decision) -> list[tuple[str, str]]:
    """(phase, metric) of the primary hypotheses, in the order in which they first occur."""
    return list(dict.fromkeys((item.phase, item.metric) for arm in decision.arms for item in arm.hypotheses))


def shown_keys(decision: Decision) -> list[tuple[str, str]]:
    """(phase, metric) that plots of launches show: what is judged, or what an A/A study tells."""
    return hypothesis_keys(decision) or [(row.phase, row.metric) for row in decision.spread]


def spread_table(decision: Decision) -> list[dict[str, str]]:
    """An A/A study's answer as a table, the same for terminal, report and note: head -> cell."""
    blocks = list(dict.fromkeys(count for row in decision.spread for count in row.resolves_pct))
    return [_spread_cells(row, blocks) for row in decision.spread]


def _spread_cells(row: Spread, blocks: Sequence[int]) -> dict[str, str]:
    known = row.low_pct is not None
    cells = {
        "metric": metric_word(row.metric),
        "phase": phase_word(row.phase),
        "mean": f"{number(row.mean)} {metric_unit(row.metric)}".strip(),
        "n": str(row.launches),
        "sd, %": number(row.sd_pct, 2) if known else "-",
        "90 % interval": f"{number(row.low_pct, 2)} to {number(row.high_pct, 2)}" if known else "-",
    }
    return cells | {f"in {count}": number(row.resolves_pct.get(count), 2) for count in blocks}


SPREAD_MEANING = (
    "standard deviation between launches of one configuration inside a block, and the smallest effect, %, found in so many blocks of one arm "
    "(probability 0.8, error 5 %, one look)"
)


def find(arm: ArmResult, phase: str, metric: str) -> HypothesisResult | None:
    """None also for an INERT arm: it is another arm's configuration, so what its few launches differ by is no effect to be shown."""
    if arm.status == "INERT":
        return None
    return next((item for item in arm.hypotheses if (item.phase, item.metric) == (phase, metric)), None)


def exclusions(cells: Sequence[Cell]) -> list[tuple[str, str, str, list[Mapping[str, str]]]]:
    """(status, refused at, reason, levels of each cell) of the cells that are no arm of their own, most frequent first."""
    groups: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for cell in cells:
        if cell.status != "ARM":
            reason = cell.sentence or cell.reason or (f"same as {cell.arm}" if cell.arm else "")
            groups.setdefault((cell.status, cell.refused_at or "", reason), []).append(cell.levels)
    return [(*key, levels) for key, levels in sorted(groups.items(), key=lambda item: (item[0][0] != "REJECTED", -len(item[1])))]


def counts(decision: Decision, plan: Plan) -> str:
    """One line: cells, rejected, duplicates, arms by outcome."""
    if decision.spread:
        failed = sum(arm.failed_launches for arm in decision.arms)
        return f"{sum(arm.launches for arm in decision.arms)} launches of the baseline" + (f", {failed} failed" if failed else "")
    cells = Counter(cell.status for cell in plan.cells)
    outcomes = Counter(outcome(arm) for arm in decision.arms if arm.status != "BASELINE")
    grid = f"{plan.raw_cells} cells" if plan.raw_cells == len(plan.cells) else f"{plan.raw_cells} raw cells, {len(plan.cells)} legal"
    parts = [grid, f"{cells['REJECTED']} rejected", f"{cells['DUPLICATE']} duplicate", f"{len(decision.arms)} arms"]
    parts += [
        f"{count} {word}" for word, count in sorted(outcomes.items(), key=lambda item: _ORDER.index(item[0]) if item[0] in _ORDER else 99)
    ]
    return ", ".join(parts)


def levels_text(levels: Mapping[str, str]) -> str:
    return " ".join(f"{factor}={level}" for factor, level in levels.items())


def duration(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def is_simulated(decision: Decision) -> bool:
    return bool(decision.engine.get("simulated"))


def node_facts(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the node workers of a study found (host, driver, gpus, engine ...), from `nodes` lines of the journal; one a host."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        if entry.get("kind") == "nodes":
            found |= {str(facts.get("host", "")): facts for facts in entry.get("nodes", [])}
    return list(found.values())


def code_revision(plan: Plan, entries: Sequence[Mapping[str, Any]]) -> str:
    """The runner's git revision at the last start of the study; '' where it is not recorded."""
    places: list[Mapping[str, Any]] = [*reversed(node_facts(entries)), *reversed(entries), plan.identity]
    return next((str(place["code_revision"]) for place in places if place.get("code_revision")), "")
