"""Communication arms that cannot gain enough to matter: the node's own communication budget leaves them out before a launch.

A flag that only changes how ranks talk cannot gain more than communication's share of the pass (analysis/communication.py). Where that
bound, measured on this node, is below the margin of every hypothesis of an arm, the arm is not launched."""

from collections.abc import Mapping, Sequence
from typing import Any

from runner.analysis.communication import may_leave_out
from runner.analysis.hypotheses import margin_of
from runner.config import Settings
from runner.planning.arms import BASELINE, Merged
from runner.records.plan import Arm, Cell, Hypothesis


def leave_out(
    merged: Merged, hypotheses: Sequence[Hypothesis], settings: Settings, budget: Mapping[str, Any] | None
) -> tuple[Merged, tuple[str, ...]]:
    """(cells and arms without those left out, notes). `budget`: what `action=budget` says of these settings; None leaves all in."""
    if budget is None or not settings.protocol.leave_out or budget["ranks"] < 2:
        return merged, ()
    bounds = {row["phase"]: row for row in budget.get("phases", ())}
    measured = set(budget.get("measured_here", ()))
    base = merged.arms[0]
    gone: dict[str, str] = {}
    for arm in merged.arms[1:]:
        mine = [item for item in hypotheses if item.arm == arm.name]
        if arm.name in settings.protocol.required or not mine or not _only_talks(arm, base, settings):
            continue
        fusion = any(settings.factors[name].fusion for name in _changed(arm, base))
        if all(_too_small(bounds.get(item.phase), margin_of(item.metric, settings.protocol), measured, fusion) for item in mine):
            most = max(bounds[item.phase]["bound_pct"] for item in mine)
            gone[arm.name] = (
                f"left out: all communication is at most {most:.2g} % of a pass in every judged phase (measured on this node), which is "
                "below the margin, so a communication flag cannot gain enough to matter; protocol.leave_out=false measures it all the same"
            )
    if not gone:
        return merged, ()
    arms = tuple(arm for arm in merged.arms if arm.name not in gone)
    cells = tuple(_left(cell, gone) for cell in merged.cells)
    note = f"left out by the communication budget of this node: {', '.join(gone)}"
    return Merged(cells, arms, merged.unconfirmed, merged.notes, merged.resolved_seconds), (note,)


def _changed(arm: Arm, base: Arm) -> list[str]:
    return [name for name in {**base.levels, **arm.levels} if arm.levels.get(name) != base.levels.get(name)]


def _only_talks(arm: Arm, base: Arm, settings: Settings) -> bool:
    changed = _changed(arm, base)
    return bool(changed) and all(name in settings.factors and settings.factors[name].communication for name in changed)


def _too_small(row: Mapping[str, Any] | None, margin: float, measured: set[str], fusion: bool) -> bool:
    if row is None:
        return False
    return may_leave_out(row["bound_pct"], margin, measured_here=row["algorithm"] in measured, fusion=fusion)


def _left(cell: Cell, gone: Mapping[str, str]) -> Cell:
    if cell.arm is None or cell.arm not in gone:
        return cell
    return cell.model_copy(update={"status": "DUPLICATE", "arm": BASELINE, "reason": gone[cell.arm]})
