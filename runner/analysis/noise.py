"""The noise floor of a node: what differs between launches when nothing is changed (A/A launches)."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from runner.analysis.dunnett import critical_value
from runner.analysis.floor_spread import floor_spread, spread_without_drift
from runner.analysis.modes import apart_by_block, two_modes
from runner.analysis.observations import MEASURING, ordered
from runner.analysis.variance import Prior
from runner.records.schema import LaunchRecord
from runner.spec.base import Strict

Array = NDArray[np.float64]
RESOLVED_BY = (3, 6, 12)


class NoiseEntry(Strict):
    """One (phase, metric). All spreads are standard deviations of log values, in percent.

    `between_pct` is what is left between launches of one block after a straight drift over launches; `within_pct` the spread inside
    a launch, null where nothing tells. `drift_pct` is per launch, with its two-sided p-value. `blocks_pct` is the spread of the
    blocks' means (their prompts differ, and the node may), with the p-value of there being none beyond the launches' own.
    `resolves_pct`: blocks -> smallest effect of one arm that is found with probability 0.8 (two-sided 5 %, one look)."""

    phase: str
    metric: str
    launches: int
    between_pct: float
    df: float
    within_pct: float | None = None
    modes: int = 1
    mode_gap_pct: float = 0.0
    drift_pct: float = 0.0
    drift_p: float = 1.0
    blocks_pct: float = 0.0
    blocks_p: float = 1.0
    autocorrelation: float = 0.0
    resolves_pct: dict[int, float] = Field(default_factory=dict)


class NoiseFloor(Strict):
    """What `experiment=noise_floor` writes for a node."""

    schema_version: int = Field(default=1, alias="schema")
    node: str = ""
    engine: str = ""
    simulated: bool = False
    launches: int = 0
    entries: tuple[NoiseEntry, ...] = ()

    def entry(self, phase: str, metric: str) -> NoiseEntry | None:
        return next((entry for entry in self.entries if entry.phase == phase and entry.metric == metric), None)

    def prior(self, phase: str, metric: str) -> Prior | None:
        """For `verdicts.Rules`; None where this was not measured or gives no degree of freedom."""
        entry = self.entry(phase, metric)
        return Prior((entry.between_pct / 100) ** 2, entry.df) if entry and entry.df > 0 and entry.between_pct > 0 else None

    def gap(self, phase: str, metric: str) -> float:
        """Log distance of the node's modes; 0 for one mode."""
        entry = self.entry(phase, metric)
        return entry.mode_gap_pct / 100 if entry and entry.modes > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return json.loads(self.model_dump_json(by_alias=True))  # type: ignore[no-any-return]


def noise_floor(launches: Sequence[LaunchRecord]) -> NoiseFloor:
    """From A/A launches (purpose `noise` or `measure`). Launches of purpose `noise` are one and the same configuration whatever
    they are called, so they share one mean; of other purposes each arm is centred by itself. Invalid phases are left out. No launch
    gives an empty floor."""
    taken = [launch for launch in ordered(launches) if launch.purpose in MEASURING and launch.outcome == "ok"]
    series: dict[tuple[str, str], list[tuple[int, str, int, float]]] = {}
    within: dict[tuple[str, str], list[float]] = {}
    for index, launch in enumerate(taken):
        seen: dict[tuple[str, str], list[float]] = {}
        for phase in launch.phases:
            if not phase.valid:
                continue
            for metric, value in phase.metrics.items():
                if np.isfinite(value) and value > 0:
                    seen.setdefault((phase.phase, metric), []).append(float(np.log(value)))
            for metric, percent in phase.within_pct.items():
                within.setdefault((phase.phase, metric), []).append(percent / 100)
        for key, logs in seen.items():
            name = "A/A" if launch.purpose == "noise" else launch.arm
            series.setdefault(key, []).append((index, name, launch.block, float(np.mean(logs))))
            if len(logs) > 1:
                within.setdefault(key, []).append(float(np.std(logs, ddof=1)))
    entries = tuple(_entry(key, rows, within.get(key, [])) for key, rows in series.items())
    first = taken[0] if taken else None
    return NoiseFloor(
        node=first.node if first else "",
        engine=first.engine.version if first else "",
        simulated=any(launch.engine.simulated for launch in taken),
        launches=len(taken),
        entries=entries,
    )


def _entry(key: tuple[str, str], rows: list[tuple[int, str, int, float]], within: list[float]) -> NoiseEntry:
    index = np.array([row[0] for row in rows], dtype=float)
    blocks = np.array([row[2] for row in rows])
    values = np.array([row[3] for row in rows])
    names = [row[1] for row in rows]
    for name in set(names):
        own = np.array([other == name for other in names])
        values[own] -= values[own].mean()
    n, arms = len(values), len(set(names))
    spread = floor_spread(values[None, :], blocks) if arms == 1 else spread_without_drift(values[None, :], index, arms)
    sd, df, drift, residual = float(spread.sd[0]), spread.df, float(spread.slope[0]), spread.residual[0]
    modes = two_modes(values)
    own_modes = modes.count > 1 and not apart_by_block(values, blocks)
    lag = float(np.dot(residual[1:], residual[:-1]) / np.dot(residual, residual)) if n > 3 and np.dot(residual, residual) > 0 else 0.0
    return NoiseEntry(
        phase=key[0],
        metric=key[1],
        launches=n,
        between_pct=sd * 100,
        df=df,
        within_pct=float(np.sqrt(np.mean(np.square(within)))) * 100 if within else None,
        modes=2 if own_modes else 1,
        mode_gap_pct=modes.gap * 100 if own_modes else 0.0,
        drift_pct=drift * 100,
        drift_p=float(spread.slope_p[0]),
        blocks_pct=float(spread.blocks_sd[0]) * 100,
        blocks_p=float(spread.blocks_p[0]),
        autocorrelation=lag,
        resolves_pct={blocks: resolves(sd, df, blocks) * 100 for blocks in RESOLVED_BY} if df > 0 else {},
    )


def resolves(sd: float, df: float, blocks: int, level: float = 0.05, arms: int = 1) -> float:
    """Log effect found with probability 0.8 after `blocks`, given launch standard deviation `sd` known with `df`."""
    prior = Prior(sd**2, df).effective_df if df > 0 else 0.0
    total = prior + arms * (blocks - 1)
    return float((critical_value(level, arms, total) + 0.8416) * sd * np.sqrt(2 / blocks))
