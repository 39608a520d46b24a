"""Launch records and plans made for tests: true effects, noise and faults are arguments."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from runner.records.plan import Arm, Cell, Estimate, Hypothesis, Plan
from runner.records.schema import Command, EngineIdentity, Evidence, Failure, LaunchRecord, PhaseRecord

TPOT = "tpot_p50_ms"
PHASES = ("decode_c1", "decode_c128")


def launch(
    arm: str,
    block: int,
    position: int = 0,
    *,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    levels: Mapping[str, str] | None = None,
    outcome: str = "ok",
    failure: Failure | None = None,
    valid: bool = True,
    purpose: str = "measure",
    evidence: Sequence[Evidence] = (),
    attempt: int = 1,
    gpu_seconds: float = 60.0,
    started_at: float | None = None,
    previous_arm: str | None = None,
    idle_gap_s: float | None = None,
) -> LaunchRecord:
    """One record; `metrics`: phase -> metric -> value."""
    streams = {"decode_c1": 1, "decode_c128": 128}
    at = started_at if started_at is not None else 1000.0 * block + 10.0 * position + attempt
    return LaunchRecord(
        study="s",
        launch=f"{purpose}-b{block:02d}-p{position:02d}-{arm}-a{attempt}",
        arm=arm,
        levels=dict(levels or {}),
        block=block,
        position=position,
        attempt=attempt,
        purpose=purpose,
        node="node",
        engine=EngineIdentity(kind="simulated", version="0.5.9", build="b", simulated=True),
        command=Command(argv=("serve", arm), env={"ARM": arm}),
        started_at=at,
        ended_at=at + 5,
        previous_arm=previous_arm,
        idle_gap_s=idle_gap_s,
        gpu_seconds=gpu_seconds,
        outcome=outcome,
        failure=failure,
        evidence=tuple(evidence),
        phases=tuple(
            PhaseRecord(
                phase=phase,
                valid=valid,
                invalid_reasons=() if valid else ("client too slow",),
                concurrency=streams.get(phase),
                metrics=dict(values),
            )
            for phase, values in (metrics or {}).items()
        )
        if outcome == "ok"
        else (),
    )


def plan(
    arms: Mapping[str, Mapping[str, str]], *, baseline: str = "baseline", phases: Sequence[str] = ("decode_c1",), **extra: object
) -> Plan:
    """Arms by name -> levels, the baseline among them; every other arm has a TPOT hypothesis in every phase."""
    names = list(arms)
    others = [name for name in names if name != baseline]
    rows = tuple(tuple(names[shift:] + names[:shift]) for shift in range(len(names)))
    fields: dict[str, object] = {
        "study": "s",
        "experiment": "e",
        "engine_kind": "simulated",
        "engine_version": "0.5.9",
        "simulated": True,
        "node": "node",
        "model": "m",
        "baseline": baseline,
        "baseline_levels": dict(arms[baseline]),
        "factors": tuple(dict.fromkeys(factor for levels in arms.values() for factor in levels)),
        "raw_cells": len(arms),
        "cells": tuple(Cell(levels=dict(levels), status="ARM", arm=name) for name, levels in arms.items()),
        "arms": tuple(Arm(name=name, levels=dict(levels)) for name, levels in arms.items()),
        "phases": tuple(phases),
        "hypotheses": tuple(Hypothesis(arm=name, phase=phase, metric=TPOT) for phase in phases for name in others),
        "blocks": rows,
        "estimate": Estimate(estimate=10, low=5, high=20, launches=10),
    }
    return Plan.model_validate(fields | extra)


def measured(
    rng: np.random.Generator,
    names: Sequence[str],
    blocks: int,
    *,
    effects: Mapping[str, float] | None = None,
    noise: float = 0.003,
    phases: Sequence[str] = ("decode_c1",),
    levels: Mapping[str, Mapping[str, str]] | None = None,
    shift: Callable[[int], float] = lambda block: 0.0,
    start: int = 0,
    purpose: str = "measure",
) -> list[LaunchRecord]:
    """Gaussian launches of every name in every block; `effects`: arm -> log ratio of TPOT; `shift`: block -> log shift."""
    found = []
    for block in range(start, start + blocks):
        order = list(names[block % len(names) :]) + list(names[: block % len(names)])
        for position, name in enumerate(order):
            values = {
                phase: {TPOT: float(10 * np.exp((effects or {}).get(name, 0.0) + shift(block) + noise * rng.standard_normal()))}
                for phase in phases
            }
            found.append(launch(name, block, position, metrics=values, levels=(levels or {}).get(name), purpose=purpose))
    return found
