"""A small plan for tests of execution: a baseline and two arms, three blocks."""

from typing import Any

from runner.records.plan import Arm, Cell, Estimate, Hypothesis, Plan


def small_plan(**changes: Any) -> Plan:
    """Arms baseline, fast, slow on one phase; `changes` replace fields."""
    names = ("baseline", "fast", "slow")
    arms = tuple(Arm(name=name, levels={"speed": name}, configuration_hash=name) for name in names)
    fields: dict[str, Any] = {
        "study": "s",
        "experiment": "small",
        "engine_kind": "simulated",
        "engine_version": "0.5.9",
        "simulated": True,
        "node": "n",
        "model": "m",
        "baseline": "baseline",
        "baseline_levels": {"speed": "baseline"},
        "factors": ("speed",),
        "raw_cells": 3,
        "cells": tuple(Cell(levels=arm.levels, status="ARM", arm=arm.name) for arm in arms),
        "arms": arms,
        "phases": ("decode_c1",),
        "hypotheses": tuple(Hypothesis(arm=name, phase="decode_c1", metric="tpot_p50_ms") for name in names[1:]),
        "blocks": (names, names[::-1], ("fast", "baseline", "slow")),
        "estimate": Estimate(estimate=1, low=1, high=2),
        "identity": {"engine": "0.5.9", "grid": "abc"},
    }
    return Plan.model_validate({**fields, **changes})
