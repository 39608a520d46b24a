"""Do position, predecessor or the idle gap before a launch move the numbers? Tested on residuals after arm and block.

Position and idle gap: rank correlation with the residual (Spearman 1904); predecessor: rank test over groups (Kruskal and Wallis
1952). P-values come from fixed-seed permutations of the residuals over all launches, so that no distribution is assumed, and are
adjusted over all tests of the study (Holm 1979)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.analysis.blockfit import fit_blocks
from runner.analysis.observations import MEASURING, block_table, ordered
from runner.records.schema import LaunchRecord

Array = NDArray[np.float64]
PERMUTATIONS = 999
LEAST = 6


def order_effects(launches: Sequence[LaunchRecord], keys: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`keys`: (phase, metric). Returns {"tests": [{phase, metric, what, statistic, p, p_adjusted, launches}], "found": [...]}."""
    taken = [launch for launch in ordered(launches) if launch.purpose in MEASURING and launch.outcome == "ok"]
    names = list(dict.fromkeys(launch.arm for launch in taken))
    tests: list[dict[str, Any]] = []
    for phase, metric in keys:
        if len(names) < 2:
            break
        table = block_table(taken, phase, metric, names)
        if int(table.mask.sum()) < LEAST:
            continue
        residual = fit_blocks(table.values[None], table.mask[None], table.slots[None], slope=False).residual[0]
        where = {number: row for row, number in enumerate(table.blocks)}
        rows = [launch for launch in taken if table.mask[where[launch.block], names.index(launch.arm)]]
        values = np.array([residual[where[launch.block], names.index(launch.arm)] for launch in rows])
        if not np.any(np.abs(values) > 1e-12):
            continue
        tests += _tests(phase, metric, rows, values)
    _holm(tests)
    return {"tests": tests, "found": [test for test in tests if test["p_adjusted"] < 0.05]}


def _tests(phase: str, metric: str, rows: Sequence[LaunchRecord], values: Array) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1979)
    found = []

    def add(what: str, statistic: float, p: float, n: int) -> None:
        found.append({"phase": phase, "metric": metric, "what": what, "statistic": round(statistic, 4), "p": p, "launches": n})

    position = np.array([launch.position for launch in rows], dtype=float)
    if len(set(position)) > 1:
        add("position", *_correlation(position, values, rng), len(values))
    gaps = np.array([np.nan if launch.idle_gap_s is None else launch.idle_gap_s for launch in rows])
    known = np.isfinite(gaps)
    if known.sum() >= LEAST and np.ptp(gaps[known]) > 0:
        add("idle_gap", *_correlation(gaps[known], values[known], rng), int(known.sum()))
    before = np.array([launch.previous_arm or "" for launch in rows])
    has = before != ""
    if has.sum() >= LEAST and len(set(before[has])) > 1:
        add("predecessor", *_between_groups(before[has], values[has], rng), int(has.sum()))
    return found


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=float)


def _correlation(x: Array, y: Array, rng: np.random.Generator) -> tuple[float, float]:
    a, b = _ranks(x) - (len(x) + 1) / 2, _ranks(y) - (len(y) + 1) / 2
    scale = float(np.sqrt((a @ a) * (b @ b)))
    if scale == 0:
        return 0.0, 1.0
    observed = float(a @ b) / scale
    drawn = rng.permuted(np.tile(b, (PERMUTATIONS, 1)), axis=1) @ a / scale
    return observed, float((1 + np.sum(np.abs(drawn) >= abs(observed) - 1e-12)) / (PERMUTATIONS + 1))


def _between_groups(group: NDArray[np.str_], y: Array, rng: np.random.Generator) -> tuple[float, float]:
    ranks = _ranks(y) - (len(y) + 1) / 2
    names, index = np.unique(group, return_inverse=True)
    member = np.eye(len(names))[index]
    sizes = member.sum(axis=0)

    def statistic(values: Array) -> Array:
        return np.asarray(((values @ member) ** 2 / sizes).sum(axis=-1))

    observed = float(statistic(ranks[None, :])[0])
    drawn = statistic(rng.permuted(np.tile(ranks, (PERMUTATIONS, 1)), axis=1))
    total = float(ranks @ ranks) / max(len(y) - 1, 1)
    return observed / total if total > 0 else 0.0, float((1 + np.sum(drawn >= observed - 1e-9)) / (PERMUTATIONS + 1))


def _holm(tests: list[dict[str, Any]]) -> None:
    running = 0.0
    for rank, test in enumerate(sorted(tests, key=lambda test: test["p"])):
        running = max(running, min(1.0, (len(tests) - rank) * test["p"]))
        test["p_adjusted"] = running
