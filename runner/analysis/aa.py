"""What an A/A study says: how far launches of one configuration lie apart, and what a study on this node can therefore find."""

import math
from collections.abc import Sequence

from scipy.special import chdtri

from runner.analysis.noise import NoiseEntry, noise_floor
from runner.analysis.observations import MEASURING
from runner.analysis.results import phase_values
from runner.records import words
from runner.records.decision import Recommendation, Spread
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol

HEADLINES = ("tpot_p50_ms", "ttft_p50_ms", "output_tok_s")
FEWEST_BLOCKS = 3
FEWEST_LAUNCHES = 3  # two launches give a spread that can be wrong by ten times
TOLD = 0.01  # p-value below which a drift or a difference of blocks is told


def is_aa(plan: Plan) -> bool:
    """Every arm is the baseline, so nothing is compared."""
    return len(plan.arms) > 1 and not plan.hypotheses and all(arm.levels == plan.baseline_levels for arm in plan.arms)


def spreads(plan: Plan, launches: Sequence[LaunchRecord], protocol: Protocol) -> tuple[Spread, ...]:
    """One row a metric and phase, metrics first: the headline metrics and what the protocol judges. Empty without a valid launch."""
    floor, means = noise_floor(launches), phase_values([record for record in launches if record.purpose in MEASURING])
    metrics = dict.fromkeys([*HEADLINES, *(item.metric for item in protocol.primary)])
    found = [entry for metric in metrics for phase in plan.phases if (entry := floor.entry(phase, metric)) is not None]
    return tuple(_row(entry, means[entry.phase][entry.metric]) for entry in found)


def _row(entry: NoiseEntry, mean: float) -> Spread:
    told = entry.df > 0 and entry.launches >= FEWEST_LAUNCHES
    low, high = (entry.between_pct * math.sqrt(entry.df / chdtri(entry.df, tail)) if told else None for tail in (0.05, 0.95))
    return Spread(
        phase=entry.phase,
        metric=entry.metric,
        launches=entry.launches,
        mean=mean,
        sd_pct=entry.between_pct,
        low_pct=low,
        high_pct=high,
        resolves_pct=entry.resolves_pct if told else {},
        drift_pct=entry.drift_pct,
        drift_p=entry.drift_p,
        blocks_pct=entry.blocks_pct,
        blocks_p=entry.blocks_p,
        modes=entry.modes,
        mode_gap_pct=entry.mode_gap_pct,
    )


def answer(plan: Plan, rows: Sequence[Spread], complete: bool) -> Recommendation:
    """In place of a recommendation. `rows` is not empty."""
    known = [row for row in rows if row.low_pct is not None]
    if not known:
        sentence = f"Too few launches ({max(row.launches for row in rows)}) to tell how far launches of one configuration lie apart."
    else:
        by_metric = {metric: [row for row in known if row.metric == metric] for metric in dict.fromkeys(row.metric for row in known)}
        ranges = [f"{words.metric_word(metric)} {_range([row.sd_pct for row in found])} %" for metric, found in by_metric.items()]
        launches = max(row.launches for row in known)
        sentence = f"Launches of one configuration lie apart by (standard deviation of {launches} launches, quietest to loudest phase) "
        sentence += f"{', '.join(ranges)}.{_found(next(iter(by_metric.values())))}"
    steps = [row for row in rows if row.modes > 1]
    if not complete:
        following = "Resume this study: the same command continues it."
    elif steps:
        following = (
            f"Find out what sets the two speeds of {steps[0].phase} ({words.metric_word(steps[0].metric)}, {steps[0].mode_gap_pct:.1f} % "
            "apart: pinning, clocks, NUMA); no verdict will be given inside that distance."
        )
    else:
        following = "Run a study on this node: its plan, its stops and its verdicts use this floor."
    return Recommendation(
        arm=None,
        sentence=f"SIMULATED. {sentence}" if plan.simulated else sentence,
        not_proved=("anything outside the measured phases and this engine build; a node is noisier on some days",),
        next_experiment=following,
    )


def _range(values: Sequence[float]) -> str:
    low, high = words.number(min(values), 2), words.number(max(values), 2)
    return low if low == high else f"{low} to {high}"


def _found(rows: Sequence[Spread]) -> str:
    quiet, loud = min(rows, key=lambda row: row.sd_pct), max(rows, key=lambda row: row.sd_pct)
    found = [
        (row, row.resolves_pct[FEWEST_BLOCKS]) for row in ([quiet] if quiet is loud else [quiet, loud]) if FEWEST_BLOCKS in row.resolves_pct
    ]
    if not found:
        return ""
    effects = [f"of {words.number(percent, 2)} % in {row.phase}" for row, percent in found]
    return f" With {FEWEST_BLOCKS} blocks a study here finds an effect on {words.metric_word(quiet.metric)} {' and '.join(effects)}."


def warnings(rows: Sequence[Spread]) -> list[str]:
    """Drift, two speeds and blocks that differ, by phase and metric."""
    found = []
    for row in rows:
        where = f"{row.phase} {row.metric}"
        if row.modes > 1:
            found.append(f"{where}: two speeds {row.mode_gap_pct:.1f} % apart between launches of the same command")
        elif row.drift_p < TOLD:
            found.append(f"{where}: drifts by {words.signed(row.drift_pct, 2)} % a launch (p = {words.number(row.drift_p, 2)})")
        if row.blocks_p < TOLD:
            found.append(
                f"{where}: blocks lie {words.number(row.blocks_pct, 2)} % apart (standard deviation of their means; each has its own prompts): "
                "compare inside blocks, as studies do; what launches of different blocks differ by is no effect"
            )
    return found
