"""What the adaptive design saves, against a fixed design and a naive grid, at equal family-wise error. SIMULATED.

The scenario is that of `overlap_grid`: legal cells share arms, half of the arms that serve are INERT (a contradicted flag), the
others have a few true effects. A launch costs the same everywhere, so launches stand for GPU minutes."""

from dataclasses import dataclass

import numpy as np

from runner.analysis.verdicts import HIGHER, LOWER, SAME
from tests.bench.decide_sim import Cell, Outcome, simulate

LEGAL_CELLS = 32
INERT_ARMS = 8
EFFECTS = (0.0, 0.0, 0.0, -0.03, -0.03, -0.05, 0.02)
FIXED_LAUNCHES = 6


@dataclass(frozen=True)
class Cost:
    """Means over studies: launches of each design, share of right verdicts (of arms that are not INERT), family-wise error."""

    noise: float
    floor: int
    adaptive_launches: float
    fixed_launches: float
    naive_launches: float
    adaptive_right: float
    fixed_right: float
    adaptive_wrong: float
    fixed_wrong: float
    matched_blocks: int

    @property
    def of_fixed(self) -> float:
        return self.adaptive_launches / self.fixed_launches

    @property
    def of_naive(self) -> float:
        return self.adaptive_launches / self.naive_launches

    @property
    def of_matched(self) -> float:
        """Against the fixed design with just as many blocks as give it the adaptive design's share of right verdicts."""
        return self.adaptive_launches / ((len(EFFECTS) + 1 + INERT_ARMS) * self.matched_blocks)


def right_share(outcome: Outcome) -> float:
    """BETTER or WORSE for arms with an effect (right sign), SAME for arms without."""
    truth = outcome.cell.truth
    wanted = np.where(truth == 0, SAME, np.where(truth > 0, HIGHER, LOWER))
    return float((outcome.verdict == wanted).mean())


def cost(noise: float, studies: int, floor: int = 12, seed: int = 9) -> Cost:
    """All three designs at launch noise `noise`. The fixed design has no early stop and one look; INERT arms cost one launch in
    the adaptive design (their first evidence closes them) and full rows in the other two."""
    arms = len(EFFECTS)
    cell = Cell(arms=arms, noise=noise, effects=EFFECTS, floor=floor)
    adaptive = simulate(cell, studies, seed)
    launches = float((adaptive.launches.sum(axis=1) + adaptive.baseline_launches).mean()) + INERT_ARMS

    def fixed(blocks: int) -> Outcome:
        return simulate(
            Cell(arms=arms, noise=noise, effects=EFFECTS, floor=floor, min_blocks=blocks, max_blocks=blocks, stop_early=False),
            studies,
            seed,
        )

    six, right = fixed(FIXED_LAUNCHES), right_share(adaptive)
    matched = next((blocks for blocks in range(3, 13) if right_share(fixed(blocks)) >= right - 0.005), 13)
    return Cost(
        noise=noise,
        floor=floor,
        adaptive_launches=launches,
        fixed_launches=(arms + 1 + INERT_ARMS) * FIXED_LAUNCHES,
        naive_launches=LEGAL_CELLS * FIXED_LAUNCHES,
        adaptive_right=right,
        fixed_right=right_share(six),
        adaptive_wrong=float(adaptive.any_difference.mean()),
        fixed_wrong=float(six.any_difference.mean()),
        matched_blocks=matched,
    )


def table(studies: int) -> str:
    """The cost table as Markdown."""
    lines = [
        f"Scenario: {LEGAL_CELLS} legal cells, {len(EFFECTS) + 1 + INERT_ARMS} arms that serve, {INERT_ARMS} of them INERT; true effects of the "
        f"others (log ratio): {', '.join(f'{effect:+.2f}' for effect in EFFECTS)}. {studies} studies a row.",
        "",
        "| launch noise | noise floor | adaptive launches | fixed (arms x 6) | naive (cells x 6) | of fixed | of naive | of the fixed design with "
        "the same share of right verdicts | right: adaptive, fixed | false difference: adaptive, fixed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [cost(noise, studies, floor) for floor in (12, 0) for noise in (0.003, 0.01)]
    for row in rows:
        lines.append(
            f"| {100 * row.noise:.1f} % | {row.floor or 'none'} | {row.adaptive_launches:.1f} | {row.fixed_launches:.0f} | {row.naive_launches:.0f} | "
            f"{row.of_fixed:.2f} | {row.of_naive:.2f} | {row.of_matched:.2f} ({row.matched_blocks} blocks) | "
            f"{row.adaptive_right:.3f}, {row.fixed_right:.3f} | {row.adaptive_wrong:.4f}, {row.fixed_wrong:.4f} |"
        )
    share, grid = max(row.of_fixed for row in rows), max(row.of_naive for row in rows)
    lines += [
        "",
        f"Goal: at most 1/3 of the fixed design ({'met' if share <= 1 / 3 else f'NOT met, {share:.2f} at worst'}) and at most 1/10 of the naive "
        f"grid ({'met' if grid <= 0.1 else f'NOT met, {grid:.2f} at worst'}). Three valid launches an arm is the least that gives a verdict, so an arm "
        "that is not INERT never costs less than half of six launches; the rest of the saving comes from INERT and refused cells. Fresh blocks "
        "that confirm the recommendation (two, four launches) are not counted in any design.",
    ]
    return "\n".join(lines)
