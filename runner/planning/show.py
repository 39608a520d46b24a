"""The plan for a terminal and for scripts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from runner.planning.candidates import EXPECTED_INERT
from runner.records.plan import Arm, Plan

_WIDTH = 110
_SHOWN_CELLS = 40


def plan_text(plan: Plan) -> str:
    """Arms, excluded cells with reasons and counts, order, cost: what a person decides on before saying yes."""
    simulated = " - SIMULATED engine, its results are not measurements" if plan.simulated else ""
    lines = [f"Plan of {plan.experiment or plan.study}{simulated}"]
    lines += [plan.question] if plan.question else []
    lines += [f"engine {plan.engine_kind} {plan.engine_version}, node {plan.node}, model {plan.model}", ""]
    status = Counter(cell.status for cell in plan.cells)
    counted = ", ".join(f"{status[name]} {name}" for name in ("ARM", "DUPLICATE", "REJECTED") if status[name])
    lines.append(f"{plan.raw_cells} raw cells -> {len(plan.cells)} legal -> {len(plan.arms)} arms ({counted})")
    inert = sum(any(EXPECTED_INERT in text for text in arm.expect) for arm in plan.arms)
    lines += (
        [f"{inert} of these arms are expected to equal another one ({EXPECTED_INERT}, below): {len(plan.arms) - inert} differ", ""]
        if inert
        else [""]
    )
    lines += _arm_lines(plan)
    lines += _excluded_lines(plan)
    lines += ["", f"Order (seed {plan.seed}), one row a block:"]
    lines += _block_lines(plan)
    lines += ["", *_cost_lines(plan)]
    for title, texts in (("Cannot be resolved", plan.not_resolvable), ("Unconfirmed", plan.unconfirmed), ("Notes", plan.notes)):
        lines += ["", f"{title}:", *(f"  - {text}" for text in texts)] if texts else []
    return "\n".join(lines)


def plan_json(plan: Plan) -> dict[str, Any]:
    """One JSON object: `cells`, `arms`, `blocks`, `gpu_minutes` {estimate, low, high}, `not_resolvable`, and what they rest on."""
    cost = plan.estimate
    return {
        "schema": plan.schema_version,
        "study": plan.study,
        "experiment": plan.experiment,
        "engine": {"kind": plan.engine_kind, "version": plan.engine_version, "simulated": plan.simulated},
        "node": plan.node,
        "model": plan.model,
        "baseline": plan.baseline,
        "factors": list(plan.factors),
        "phases": list(plan.phases),
        "raw_cells": plan.raw_cells,
        "cells": [cell.model_dump(mode="json") for cell in plan.cells],
        "arms": [arm.model_dump(mode="json") for arm in plan.arms],
        "hypotheses": [hypothesis.model_dump(mode="json") for hypothesis in plan.hypotheses],
        "blocks": [list(row) for row in plan.blocks],
        "gpu_minutes": {"estimate": cost.estimate, "low": cost.low, "high": cost.high},
        "wall_minutes": cost.wall_minutes,
        "launches": cost.launches,
        "launch_cost": {"cold_s": cost.launch_cold_s, "warm_s": cost.launch_warm_s, "source": cost.source},
        "not_resolvable": list(plan.not_resolvable),
        "unconfirmed": list(plan.unconfirmed),
        "notes": list(plan.notes),
        "seed": plan.seed,
        "identity": dict(plan.identity),
    }


def _arm_lines(plan: Plan) -> list[str]:
    base = plan.arms[0]
    lines = ["Arms:", f"  {_label(0)} {base.name}: {_levels(base.levels)}"]
    lines += _wrapped(f"--{name} {_value(value)}".strip() for name, value in base.options.items())
    lines += _wrapped(f"{name}={value}" for name, value in base.env.items())
    for index, arm in enumerate(plan.arms[1:], 1):
        lines.append(f"  {_label(index)} {arm.name}")
        lines += _wrapped(_difference(arm, base))
        lines += [f"       {text}" for text in arm.notes]
    expected: dict[str, list[str]] = {}
    for index, arm in enumerate(plan.arms):
        for text in arm.expect:
            expected.setdefault(text, []).append(_label(index))
    lines += ["", "Known beforehand:"] if expected else []
    for text, labels in expected.items():
        lines += [f"  {text}", f"       {' '.join(labels)}"]
    return lines


def _difference(arm: Arm, base: Arm) -> list[str]:
    """What the arm's launch has that the baseline's has not, and the other way round."""
    words = [f"+ --{n} {_value(v)}".rstrip() for n, v in arm.options.items() if base.options.get(n) != v or n not in base.options]
    words += [f"- --{name}" for name in base.options if name not in arm.options]
    words += [f"+ {n}={v}" for n, v in arm.env.items() if base.env.get(n) != v]
    words += [f"- {name}" for name in base.env if name not in arm.env]
    return words + [f"+ patch {patch}" for patch in arm.patches if patch not in base.patches]


def _excluded_lines(plan: Plan) -> list[str]:
    """Cells that are no arm of their own, grouped by reason."""
    groups: dict[tuple[str, str, str, str], list[Mapping[str, str]]] = {}
    for cell in plan.cells:
        if cell.status != "ARM":
            groups.setdefault((cell.status, cell.refused_at or "", cell.reason, cell.sentence), []).append(cell.levels)
    if not groups:
        return []
    lines = ["", "Excluded cells:"]
    for (status, refused_at, reason, sentence), cells in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        where = f" at {refused_at}" if refused_at else ""
        lines.append(f"  {len(cells):4d} {status}{where}: {reason}")
        if sentence and sentence not in reason:
            lines.append(f"       the engine's words: {sentence}")
        lines += [f"       {_levels(levels)}" for levels in cells[:_SHOWN_CELLS]]
        lines += [f"       ... and {len(cells) - _SHOWN_CELLS} more"] if len(cells) > _SHOWN_CELLS else []
    return lines


def _block_lines(plan: Plan) -> list[str]:
    numbers = {arm.name: _label(index) for index, arm in enumerate(plan.arms)}
    return [f"  {index:3d}: {' '.join(numbers[name] for name in row)}" for index, row in enumerate(plan.blocks)]


def _cost_lines(plan: Plan) -> list[str]:
    cost = plan.estimate
    return [
        f"Cost: about {cost.launches} launches, {_figure(cost.wall_minutes)} minutes, {_figure(cost.estimate)} GPU minutes "
        f"({_figure(cost.low)} to {_figure(cost.high)})",
        f"  a launch without its load: cold {cost.launch_cold_s:.3g} s, warm {cost.launch_warm_s:.3g} s ({cost.source})",
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _label(index: int) -> str:
    return f"[{index}]"


def _levels(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={level}" for name, level in levels.items()) or "no factor"


def _value(value: Any) -> str:
    if value is True:
        return ""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _wrapped(words: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= _WIDTH:
            lines[-1] += f"  {word}"
        else:
            lines.append(f"       {word}")
    return lines
