"""The noise floor of a node: what differs between launches when nothing is changed (A/A launches)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import stdtr, stdtrit

from runner.analysis.dunnett import critical_value
from runner.analysis.modes import two_modes
from runner.analysis.observations import MEASURING, ordered
from runner.analysis.variance import Prior
from runner.records.schema import LaunchRecord
from runner.spec.base import Strict

Array = NDArray[np.float64]
RESOLVED_BY = (3, 6, 12)
LEAST_TO_DROP = 5  # four launches and a line leave two degrees of freedom to tell an outlier by


class NoiseEntry(Strict):
    """One (phase, metric). All spreads are standard deviations of log values, in percent.

    `between_pct` is what is left between launches after a straight drift over launches; `within_pct` the spread inside a
    launch, null where nothing tells. `drift_pct` is per launch, with its two-sided p-value. `resolves_pct`: blocks -> smallest
    effect of one arm that is found with probability 0.8 (two-sided 5 %, one look)."""

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
    series: dict[tuple[str, str], list[tuple[int, str, float]]] = {}
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
            series.setdefault(key, []).append((index, "A/A" if launch.purpose == "noise" else launch.arm, float(np.mean(logs))))
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


def _entry(key: tuple[str, str], rows: list[tuple[int, str, float]], within: list[float]) -> NoiseEntry:
    index = np.array([row[0] for row in rows], dtype=float)
    values = np.array([row[2] for row in rows])
    names = [row[1] for row in rows]
    for name in set(names):
        own = np.array([other == name for other in names])
        values[own] -= values[own].mean()
    n, arms = len(values), len(set(names))
    spread = floor_spread(values[None, :]) if arms == 1 else spread_without_drift(values[None, :], index, arms)
    sd, df, drift, residual = float(spread.sd[0]), spread.df, float(spread.slope[0]), spread.residual[0]
    modes = two_modes(values)
    lag = float(np.dot(residual[1:], residual[:-1]) / np.dot(residual, residual)) if n > 3 and np.dot(residual, residual) > 0 else 0.0
    return NoiseEntry(
        phase=key[0],
        metric=key[1],
        launches=n,
        between_pct=sd * 100,
        df=df,
        within_pct=float(np.sqrt(np.mean(np.square(within)))) * 100 if within else None,
        modes=modes.count,
        mode_gap_pct=modes.gap * 100,
        drift_pct=drift * 100,
        drift_p=float(spread.slope_p[0]),
        autocorrelation=lag,
        resolves_pct={blocks: resolves(sd, df, blocks) * 100 for blocks in RESOLVED_BY} if df > 0 else {},
    )


@dataclass(frozen=True)
class Spread:
    """Of S series: standard deviation about a straight line over launches, `df`, slope a launch and its p-value, residuals."""

    sd: Array
    df: float
    slope: Array
    slope_p: Array
    residual: Array


def spread_without_drift(values: Array, index: Array, arms: int = 1) -> Spread:
    """`values` (S, n), `index` (n,): when each launch was. With too few launches for a line the plain spread is given."""
    studies, n = values.shape
    centred = index - index.mean()
    sxx = float(centred @ centred)
    residual = values - values.mean(axis=1, keepdims=True)
    if n - arms < 3 or sxx == 0:
        df = max(n - arms, 0)
        sd = np.sqrt((residual**2).sum(axis=1) / df) if df else np.zeros(studies)
        return Spread(sd, float(df), np.zeros(studies), np.ones(studies), residual)
    slope = values @ centred / sxx
    residual = residual - slope[:, None] * centred
    df = n - arms - 1
    sd = np.sqrt((residual**2).sum(axis=1) / df)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(sd > 0, np.abs(slope) * np.sqrt(sxx) / sd, np.where(slope != 0, np.inf, 0.0))
    return Spread(sd, float(df), slope, np.asarray(2 * stdtr(df, -t)), residual)


def floor_spread(values: Array) -> Spread:
    """(S, n) A/A launches in time order -> the spread that goes into the floor. A first launch that is an outlier (deleted
    residual at 5 %, as in a study) is left out: it would hide how quiet the node is afterwards."""
    index = np.arange(values.shape[1], dtype=float)
    whole = spread_without_drift(values, index)
    if values.shape[1] < LEAST_TO_DROP:
        return whole
    rest = spread_without_drift(values[:, 1:], index[1:])
    after = index[1:] - index[1:].mean()
    reach = index[0] - index[1:].mean()
    expected = values[:, 1:].mean(axis=1) + rest.slope * reach
    error = rest.sd * np.sqrt(1 + 1 / len(after) + reach**2 / (after @ after))
    odd = np.abs(values[:, 0] - expected) > -stdtrit(rest.df, 0.025) * error
    return Spread(
        sd=np.where(odd, rest.sd, whole.sd),
        df=rest.df,
        slope=np.where(odd, rest.slope, whole.slope),
        slope_p=np.where(odd, rest.slope_p, whole.slope_p),
        residual=np.where(odd[:, None], np.concatenate([np.zeros((len(values), 1)), rest.residual], axis=1), whole.residual),
    )


def resolves(sd: float, df: float, blocks: int, level: float = 0.05, arms: int = 1) -> float:
    """Log effect found with probability 0.8 after `blocks`, given launch standard deviation `sd` known with `df`."""
    prior = Prior(sd**2, df).effective_df if df > 0 else 0.0
    total = prior + arms * (blocks - 1)
    return float((critical_value(level, arms, total) + 0.8416) * sd * np.sqrt(2 / blocks))
