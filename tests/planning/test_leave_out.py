"""Arms that the node's measured communication budget leaves out, and all those that it must not."""

from collections.abc import Callable
from typing import Any

import pytest

from runner.records.plan import Plan

PlanOf = Callable[..., Plan]
PHASES = ("decode_c1", "decode_c16", "decode_c64", "decode_c128")
ONLY_TPOT = "protocol.primary=[{metric: tpot_p50_ms, kind: decode}]"


def budget(bound: float | None, measured: bool = True, ranks: int = 8, **of_phase: float) -> dict[str, Any]:
    """As `action=budget` gives it, reduced to what the plan reads."""
    rows = [{"phase": phase, "algorithm": "nccl", "bound_pct": of_phase.get(phase, bound)} for phase in PHASES]
    return {"phases": rows, "measured_here": ["nccl"] if measured else [], "ranks": ranks}


def arms(plan: Plan) -> set[str]:
    return {arm.name for arm in plan.arms}


def test_a_measured_bound_below_the_margin_leaves_communication_arms_out(plan_of: PlanOf) -> None:
    whole = plan_of("overlap_grid", "0.5.9", ONLY_TPOT)
    plan = plan_of("overlap_grid", "0.5.9", ONLY_TPOT, communication=budget(0.4))
    gone = arms(whole) - arms(plan)
    assert gone == {f"mscclpp=on+mscclpp_max_bytes={size}" for size in ("256KB", "1MB", "4MB")}, "nothing with fusion or overlap"
    cells = [cell for cell in plan.cells if "left out" in cell.reason]
    assert {cell.status for cell in cells} == {"DUPLICATE"}
    assert {cell.arm for cell in cells} == {"baseline"}
    assert all("0.4 % of a pass" in cell.reason for cell in cells)
    assert any(note.startswith("left out by the communication budget") for note in plan.notes)
    assert not gone & {item.arm for item in plan.hypotheses}
    assert not gone & {name for row in plan.blocks for name in row}


@pytest.mark.parametrize(
    ("overrides", "communication"),
    [
        ((ONLY_TPOT,), budget(0.4, measured=False)),
        ((ONLY_TPOT,), budget(1.4)),
        ((ONLY_TPOT,), budget(0.4, decode_c128=1.4)),
        ((ONLY_TPOT,), budget(None)),
        ((ONLY_TPOT, "protocol.leave_out=false"), budget(0.4)),
        ((ONLY_TPOT,), None),
        ((), budget(0.4)),
        ((ONLY_TPOT,), budget(0.0, ranks=1)),
    ],
    ids=[
        "published, not measured",
        "above the margin",
        "above it in one phase",
        "no pass time",
        "asked not to",
        "no budget",
        "prefill has no bound",
        "one rank",
    ],
)
def test_everything_else_stays(plan_of: PlanOf, overrides: tuple[str, ...], communication: dict[str, Any] | None) -> None:
    assert arms(plan_of("overlap_grid", "0.5.9", *overrides, communication=communication)) == arms(plan_of("overlap_grid", "0.5.9"))


def test_a_required_arm_stays(plan_of: PlanOf) -> None:
    name = "mscclpp=on+mscclpp_max_bytes=1MB"
    plan = plan_of("overlap_grid", "0.5.9", ONLY_TPOT, f'protocol.required=["{name}"]', communication=budget(0.4))
    assert name in arms(plan)
    assert "mscclpp=on+mscclpp_max_bytes=4MB" not in arms(plan)
