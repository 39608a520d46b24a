"""From launch records to arrays. The launch is the unit: one number for each launch, phase and metric."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runner.records.schema import LaunchRecord

Array = NDArray[np.float64]
MEASURING = ("measure", "noise")


@dataclass(frozen=True)
class Observations:
    """One row a (launch, phase, metric), in launch order. `log_value` is NaN where `valid` is false."""

    arm: NDArray[np.str_]
    block: NDArray[np.int64]
    position: NDArray[np.int64]
    phase: NDArray[np.str_]
    metric: NDArray[np.str_]
    log_value: Array
    valid: NDArray[np.bool_]


def observations(launches: Sequence[LaunchRecord], purposes: tuple[str, ...] = MEASURING) -> Observations:
    """All measured numbers of launches with one of `purposes`. An INVALID phase, a launch that did not end well, and a value
    that is not positive and finite are kept as rows but not valid."""
    rows: list[tuple[str, int, int, str, str, float, bool]] = []
    for launch in launches:
        if launch.purpose not in purposes:
            continue
        for phase in launch.phases:
            for metric, value in phase.metrics.items():
                good = launch.outcome == "ok" and phase.valid and np.isfinite(value) and value > 0
                log = float(np.log(value)) if good else float("nan")
                rows.append((launch.arm, launch.block, launch.position, phase.phase, metric, log, bool(good)))
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [() for _ in range(7)]
    return Observations(
        arm=np.array(columns[0], dtype=str),
        block=np.array(columns[1], dtype=np.int64),
        position=np.array(columns[2], dtype=np.int64),
        phase=np.array(columns[3], dtype=str),
        metric=np.array(columns[4], dtype=str),
        log_value=np.array(columns[5], dtype=float),
        valid=np.array(columns[6], dtype=bool),
    )


@dataclass(frozen=True)
class BlockTable:
    """One (phase, metric) as a table: `values`, `mask`, `slots` of shape (B, M), column 0 the baseline.

    `blocks` are the block numbers in order. `first` is the (block row, column) of the study's first launch, if it is here."""

    values: Array
    mask: NDArray[np.bool_]
    slots: Array
    blocks: tuple[int, ...]
    first: tuple[int, int] | None

    def until(self, rows: int) -> "BlockTable":
        """The first `rows` blocks: what a look at that time saw."""
        return BlockTable(self.values[:rows], self.mask[:rows], self.slots[:rows], self.blocks[:rows], self.first)


def ordered(launches: Iterable[LaunchRecord]) -> list[LaunchRecord]:
    """By time; records without times keep the order in which they were given, by block and position."""
    return sorted(launches, key=lambda launch: (launch.started_at, launch.block, launch.position, launch.attempt))


def block_numbers(launches: Iterable[LaunchRecord], purposes: tuple[str, ...] = MEASURING) -> tuple[int, ...]:
    """Blocks in which anything was launched, in time order."""
    return tuple(dict.fromkeys(launch.block for launch in ordered(launches) if launch.purpose in purposes))


def block_table(
    launches: Sequence[LaunchRecord],
    phase: str,
    metric: str,
    columns: Sequence[str],
    *,
    purposes: tuple[str, ...] = MEASURING,
    blocks: Sequence[int] | None = None,
) -> BlockTable:
    """`columns`: baseline first. Of several valid launches of an arm in one block the last counts (earlier ones were retried)."""
    taken = [launch for launch in ordered(launches) if launch.purpose in purposes]
    numbers = tuple(blocks) if blocks is not None else block_numbers(taken, purposes)
    row_of = {number: row for row, number in enumerate(numbers)}
    column_of = {name: column for column, name in enumerate(columns)}
    shape = (len(numbers), len(columns))
    values, mask, slots = np.full(shape, np.nan), np.zeros(shape, dtype=bool), np.zeros(shape)
    first = None
    for index, launch in enumerate(taken):
        row, column = row_of.get(launch.block), column_of.get(launch.arm)
        record = launch.phase(phase)
        if row is None or column is None or record is None or launch.outcome != "ok" or not record.valid:
            continue
        value = record.metrics.get(metric)
        if value is None or not np.isfinite(value) or value <= 0:
            continue
        values[row, column], mask[row, column], slots[row, column] = np.log(value), True, launch.position
        if index == 0:
            first = (row, column)
    return BlockTable(values, mask, slots, numbers, first)
