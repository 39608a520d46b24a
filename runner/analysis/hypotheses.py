"""The primary hypotheses of a study, from its plan and launches: one `Group` a (phase, metric), all arms in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runner.analysis.dunnett import sidak_level
from runner.analysis.modes import study_gaps
from runner.analysis.noise import NoiseFloor
from runner.analysis.observations import MEASURING, BlockTable, block_numbers, block_table
from runner.analysis.verdicts import HIGHER, LOWER, SAME, Result, Rules, judge_table
from runner.records.decision import Verdict
from runner.records.metrics import BY_NAME
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol

# Relative difference of accept lengths up to which launches are compared: about what a few hundred steps scatter by themselves.
ACCEPT_TOLERANCE = 0.03


@dataclass(frozen=True)
class Group:
    """`columns`: baseline first, then every arm with data. `result` is None before the first look. `arms` are those with a
    hypothesis here. `mode_gap`: log distance of two speeds that the
    node's history or this study shows, 0 for one."""

    phase: str
    metric: str
    columns: tuple[str, ...]
    arms: tuple[str, ...]
    table: BlockTable
    rules: Rules
    margin_pct: float
    higher_is_better: bool
    families: int
    mode_gap: float
    result: Result | None
    refused: Mapping[str, str] = field(default_factory=dict)  # arm -> why it is not compared here, whatever was measured

    def column(self, arm: str) -> int | None:
        """Index into arrays of shape (S, A); None for an arm without data."""
        return self.columns.index(arm) - 1 if arm in self.columns[1:] else None

    def verdict(self, arm: str) -> Verdict:
        column = self.column(arm)
        if self.result is None or column is None or arm in self.refused:
            return "UNRESOLVED"
        code = int(self.result.verdict[0, column])
        if code == SAME:
            return "SAME"
        if code in (HIGHER, LOWER):
            return "BETTER" if (code == HIGHER) == self.higher_is_better else "WORSE"
        return "UNRESOLVED"

    def percent(self, log_ratio: float) -> float:
        """Relative change of the metric in percent, signed so that positive is an improvement."""
        change = 100 * float(np.expm1(log_ratio))
        return change if self.higher_is_better else -change


def margin_of(metric: str, protocol: Protocol) -> float:
    """Percent. A metric without a margin of its own gets TPOT's, the narrowest, so that SAME is never cheap."""
    known = BY_NAME.get(metric)
    return float(getattr(protocol.margins, known.margin)) if known is not None and known.margin else protocol.margins.tpot_pct


def is_higher_better(metric: str) -> bool:
    known = BY_NAME.get(metric)
    return bool(known.higher_is_better) if known is not None and known.higher_is_better is not None else metric.endswith("_s")


def accepts_otherwise(launches: Sequence[LaunchRecord], phase: str, baseline: str, arms: Sequence[str]) -> dict[str, str]:
    """Arms that draft tokens were accepted for otherwise than for the baseline, with the sentence that says so: with speculative
    decoding a longer accept length is more tokens a step, which is the prompts' and the draft's doing and not the flag's."""
    lengths: dict[str, list[float]] = {}
    for launch in launches:
        for record in launch.phases:
            if record.phase == phase and record.valid and record.telemetry.accept_length is not None:
                lengths.setdefault(launch.arm, []).append(record.telemetry.accept_length)
    middles = {arm: float(np.median(values)) for arm, values in lengths.items()}
    base = middles.get(baseline)
    return {
        arm: f"not compared: {middles[arm]:.2f} tokens accepted a step against the baseline's {base:.2f}"
        for arm in arms
        if base and arm in middles and abs(middles[arm] / base - 1) > ACCEPT_TOLERANCE
    }


def look_counts(protocol: Protocol, looks: Sequence[int] | None = None, blocks: int = 0) -> tuple[int, ...]:
    """Block counts at which a study is looked at: after each block from the minimum on, unless `looks` says otherwise. A study of more
    than the largest number of blocks (some made up for lost ones, which has nothing to do with what was measured) has looks at all."""
    return tuple(looks) if looks else tuple(range(protocol.min_blocks, max(protocol.max_blocks, protocol.min_blocks, blocks) + 1))


def groups(
    plan: Plan,
    launches: Sequence[LaunchRecord],
    protocol: Protocol,
    noise: NoiseFloor | None = None,
    *,
    looks: Sequence[int] | None = None,
    left_out: frozenset[str] = frozenset(),
) -> list[Group]:
    """`left_out`: arms that carry no hypothesis any more (INERT): the family does not count them, whatever they measured."""
    measured = [launch for launch in launches if launch.purpose in MEASURING]
    with_data = {launch.arm for launch in measured if launch.outcome == "ok"}
    named = list(dict.fromkeys([arm.name for arm in plan.arms] + [launch.arm for launch in measured]))
    columns = (plan.baseline, *(name for name in named if name != plan.baseline and name in with_data))
    blocks = block_numbers(measured)
    keys = list(dict.fromkeys((item.phase, item.metric) for item in plan.hypotheses))
    counts = look_counts(protocol, looks, len(blocks))
    found = []
    for phase, metric in keys:
        arms = tuple(item.arm for item in plan.hypotheses if (item.phase, item.metric) == (phase, metric))
        living = [arm for arm in arms if arm in with_data and arm not in left_out]
        table = block_table(measured, phase, metric, columns, blocks=blocks)
        inside = float(study_gaps(table.values[None], table.mask[None])[0]) if table.blocks else 0.0
        gap = max(noise.gap(phase, metric) if noise is not None else 0.0, inside)
        margin = margin_of(metric, protocol)
        rules = Rules(
            alpha=sidak_level(protocol.alpha, len(keys)),
            family=max(len(living), 1),
            looks=counts,
            most=counts[-1],
            margin_low=float(np.log1p(-margin / 100)),
            margin_high=float(np.log1p(margin / 100)),
            prior=noise.prior(phase, metric) if noise is not None else None,
            gap=gap,
            slower=-1 if is_higher_better(metric) else 1,
        )
        result = None
        if len(columns) > 1:
            first = (table.first[0], np.array([table.first[1]])) if table.first is not None else None
            result = judge_table(table.values[None], table.mask[None], table.slots[None], rules, first)
        refused = accepts_otherwise(measured, phase, plan.baseline, arms)
        found.append(Group(phase, metric, columns, arms, table, rules, margin, is_higher_better(metric), len(keys), gap, result, refused))
    return found
