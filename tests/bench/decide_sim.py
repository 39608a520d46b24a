"""Simulated studies, thousands at once, judged by the very functions that judge real ones.

One metric in one phase, A arms against a baseline. A study has its node's noise floor (`floor` A/A launches of the same node, 0:
none), blocks in Williams order, a look after every block from the third, arms stopped when decided or hopeless."""

import random
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from runner.analysis.floor_spread import floor_spread
from runner.analysis.futility import HOPELESS, chance_of_verdict
from runner.analysis.modes import mode_gaps, study_gaps
from runner.analysis.variance import Prior
from runner.analysis.verdicts import HIGHER, LOWER, SAME, UNRESOLVED, Result, Rules, combine, look
from runner.analysis.winners_curse import adjusted_ratios
from runner.planning.order import blocks as williams_blocks

Array = NDArray[np.float64]
UNEQUAL = "noisy arm"
SHAPES = ("gaussian", "heavy", "drift", "bimodal", "first", UNEQUAL)
DRIFT_PER_SLOT = 0.003
MODE_GAP = float(np.log(1.2))
A_BLOCK = 4  # launches of a block of experiment=noise_floor
FIRST_SLOWER = 0.05
NOISIER = 20.0
"""The last arm's launches vary so many times more than the others', as decode without CUDA graphs did on an H200."""


@dataclass(frozen=True)
class Cell:
    """`noise` and `effects` (one an arm, or one for all) are logs. `margin` percent. `budget`: launches that the study may make.
    `lost`: this block loses its baseline launch and every second arm's; one block more makes up for it."""

    arms: int
    noise: float
    shape: str = "gaussian"
    effects: tuple[float, ...] = (0.0,)
    margin: float = 1.0
    min_blocks: int = 3
    max_blocks: int = 8
    floor: int = 12
    alpha: float = 0.05
    stop_early: bool = True
    floor_scale: float = 1.0
    budget: int | None = None
    lost: int | None = None

    @property
    def truth(self) -> Array:
        return np.broadcast_to(np.array(self.effects), (self.arms,)).astype(float)


@dataclass(frozen=True)
class Outcome:
    """Per study and arm, (S, A): verdict codes, the block count at the arm's first verdict (0: none), its launches, raw and
    adjusted estimates, interval ends; `baseline_launches` (S,)."""

    cell: Cell
    verdict: NDArray[np.int64]
    decided_at: NDArray[np.int64]
    launches: NDArray[np.int64]
    baseline_launches: NDArray[np.int64]
    estimate: Array
    adjusted: Array
    low: Array
    high: Array
    bimodal: NDArray[np.bool_]

    @property
    def covered(self) -> NDArray[np.bool_]:
        """(S,): all intervals hold the truth."""
        return ((self.low <= self.cell.truth) & (self.cell.truth <= self.high)).all(axis=1)

    @property
    def any_difference(self) -> NDArray[np.bool_]:
        """(S,): some arm without effect was called different."""
        wrong = np.isin(self.verdict, (HIGHER, LOWER)) & (self.cell.truth == 0)
        backwards = ((self.verdict == HIGHER) & (self.cell.truth < 0)) | ((self.verdict == LOWER) & (self.cell.truth > 0))
        return (wrong | backwards).any(axis=1)

    @property
    def any_false_same(self) -> NDArray[np.bool_]:
        """(S,): some arm whose effect is at or beyond the margin was called the same."""
        beyond = np.abs(np.expm1(self.cell.truth)) >= self.cell.margin / 100 - 1e-12
        return ((self.verdict == SAME) & beyond).any(axis=1)


def noise(rng: np.random.Generator, cell: Cell, shape: tuple[int, ...]) -> Array:
    """Launch noise without drift and without the first launch's surcharge."""
    if cell.shape == "heavy":
        return cell.noise * rng.standard_t(3, shape) / np.sqrt(3)
    plain = cell.noise * rng.standard_normal(shape)
    return plain + MODE_GAP * rng.integers(0, 2, shape) if cell.shape == "bimodal" else plain


def floor_of(rng: np.random.Generator, cell: Cell, studies: int, direction: Array) -> tuple[Prior | None, Array]:
    """The node's noise floor of each study: prior and mode gap, as `noise_floor` would find them."""
    if cell.floor == 0:
        return None, np.zeros(studies)
    values = cell.floor_scale * noise(rng, cell, (studies, cell.floor))
    if cell.shape == "drift":
        values += direction[:, None] * DRIFT_PER_SLOT * np.arange(cell.floor)
    if cell.shape == "first":
        values[:, 0] += FIRST_SLOWER
    spread = floor_spread(values, np.arange(cell.floor) // A_BLOCK)
    return Prior(spread.sd**2, spread.df), mode_gaps(values)


def orders(cell: Cell, studies: int, seed: int) -> NDArray[np.int64]:
    """(S, most, M): position of each column in each block, before arms are left out."""
    names = [str(index) for index in range(cell.arms + 1)]
    source = random.Random(seed)
    library = np.empty((min(studies, 200), cell.max_blocks, cell.arms + 1), dtype=np.int64)
    for study in range(len(library)):
        for block, row in enumerate(williams_blocks(names, cell.max_blocks, source.randrange(2**31))):
            for position, name in enumerate(row):
                library[study, block, int(name)] = position
    return library[np.arange(studies) % len(library)]


def affordable(is_open: NDArray[np.bool_], chance: Array, left: Array) -> NDArray[np.bool_]:
    """(S, A): the open arms that `left` (S,) launches pay for beside the baseline, the most promising first, as `next_block` chooses."""
    rank = np.where(is_open, -chance, np.inf).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return is_open & (rank < np.maximum(left - 1, 0)[:, None])


def simulate(cell: Cell, studies: int, seed: int = 1) -> Outcome:
    """Runs `studies` independent studies of one cell."""
    rng = np.random.default_rng(seed)
    columns = cell.arms + 1
    direction = rng.choice([-1.0, 1.0], studies)
    prior, floor_gap = floor_of(rng, cell, studies, direction)
    most = cell.max_blocks + (cell.lost is not None)
    planned = orders(replace(cell, max_blocks=most), studies, seed)
    first = (0, np.argmin(planned[:, 0], axis=1))
    margin = cell.margin / 100
    rules = Rules(
        alpha=cell.alpha,
        family=cell.arms,
        looks=tuple(range(cell.min_blocks, cell.max_blocks + 1)),
        most=cell.max_blocks,
        margin_low=float(np.log1p(-margin)),
        margin_high=float(np.log1p(margin)),
        prior=prior,
    )
    levels = rules.levels()
    shape = (studies, most, columns)
    values, mask, slots = np.full(shape, np.nan), np.zeros(shape, dtype=bool), np.zeros(shape)
    truth = np.concatenate([[0.0], cell.truth])
    is_open = np.ones((studies, cell.arms), dtype=bool)
    done = np.zeros(studies)
    looks = []
    decided_at = np.zeros((studies, cell.arms), dtype=np.int64)
    result: Result | None = None
    gap = floor_gap
    chance = np.ones((studies, cell.arms))
    for block in range(most):
        chosen = is_open if cell.budget is None else affordable(is_open, chance, cell.budget - done)
        running = np.concatenate([chosen.any(axis=1, keepdims=True), chosen], axis=1)
        if not running.any():
            break
        rank = np.where(running, planned[:, block], columns + 1).argsort(axis=1).argsort(axis=1)
        drawn = truth + noise(rng, cell, (studies, columns))
        if cell.shape == UNEQUAL and columns > 2:
            drawn[:, -1] = truth[-1] + NOISIER * (drawn[:, -1] - truth[-1])
        if cell.shape == "drift":
            drawn = drawn + direction[:, None] * DRIFT_PER_SLOT * (done[:, None] + rank)
        if cell.shape == "first" and block == 0:
            drawn[np.arange(studies), first[1]] += FIRST_SLOWER
        done += running.sum(axis=1)
        if block == cell.lost:
            running[:, ::2] = False
        values[:, block], mask[:, block], slots[:, block] = np.where(running, drawn, np.nan), running, rank
        count = block + 1
        if count < cell.min_blocks:
            continue
        seen = (values[:, :count], mask[:, :count], slots[:, :count])
        gap = np.maximum(floor_gap, study_gaps(seen[0], seen[1]))
        now = replace(rules, gap=gap[:, None])
        if count > cell.max_blocks:  # as hypotheses.look_counts: all looks are judged anew with one more among them
            now = replace(now, looks=(*now.looks, count), most=count)
            levels = now.levels()
            looks = [
                look(values[:, :n], mask[:, :n], slots[:, :n], levels[n - cell.min_blocks], now, first)
                for n in range(cell.min_blocks, count)
            ]
        looks.append(look(*seen, levels[count - cell.min_blocks], now, first))
        result = combine(looks, now)
        fresh = (result.verdict != UNRESOLVED) & (decided_at == 0)
        decided_at[fresh] = count
        chance = chance_of_verdict(result, now)
        if cell.stop_early:
            is_open &= (result.verdict == UNRESOLVED) & (chance >= HOPELESS)
    assert result is not None
    return Outcome(
        cell=cell,
        verdict=result.verdict,
        decided_at=decided_at,
        launches=mask[:, :, 1:].sum(axis=1),
        baseline_launches=mask[:, :, 0].sum(axis=1),
        estimate=result.last.estimate,
        adjusted=adjusted_ratios(result, rules),
        low=result.low,
        high=result.high,
        bimodal=gap > 0,
    )


def upper_bound(events: int, total: int, level: float = 0.95) -> float:
    """One-sided exact upper bound of a rate (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    return 1.0 if events >= total else float(betaincinv(events + 1, total - events, level))


def lower_bound(events: int, total: int, level: float = 0.95) -> float:
    """One-sided exact lower bound of a rate."""
    from scipy.special import betaincinv

    return 0.0 if events == 0 else float(betaincinv(events, total - events + 1, 1 - level))
