"""What the sequential design saves, against a fixed design and a naive grid, at equal family-wise error. SIMULATED.

The scenario is `overlap_grid`: 32 legal cells, of which 16 are refused (two-batch overlap) and 16 are arms that serve; half of these
or more are INERT. GPU minutes are counted in *full launches* (warm start, weights, all phases of the default protocol on the node of
that experiment, as the planner assumes them); a screen is a launch with four layers of random weights and no load. What is the same
in every design is left out: compiling at an arm's first start, priming, the smoke launch, fresh blocks that confirm."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from runner.analysis.verdicts import HIGHER, LOWER, SAME
from runner.config import config_folder, settings_from
from runner.planning.estimate import launch_costs
from runner.planning.treatments import selected_phases
from tests.bench.decide_sim import Cell, Outcome, simulate

LEGAL_CELLS = 32
SERVING = 16
FIXED_LAUNCHES = 6
LEAST_LAUNCHES = 3
ALPHAS = (0.05, 0.045, 0.04, 0.035, 0.03, 0.025, 0.02)


@dataclass(frozen=True)
class Scenario:
    """`effects`: true log ratios of the arms that are not INERT; the other arms that serve are INERT, the baseline counts as one."""

    name: str
    effects: tuple[float, ...]

    @property
    def inert(self) -> int:
        return SERVING - 1 - len(self.effects)


SCENARIOS = (
    Scenario("mscclpp in force", (0.0, 0.0, 0.0, -0.03, -0.03, -0.05, 0.02)),
    Scenario("mscclpp not importable, as on two H200s", (-0.03,)),
)


@dataclass(frozen=True)
class Cost:
    """Means over studies. `launches` are measured ones, INERT arms not among them; `screened` adds a screen of every arm but the
    baseline, `unscreened` one full launch of every INERT arm. `fixed_alpha`: the level at which six blocks make no more false
    differences than the sequential design; `matched_blocks`: so many blocks at that level (interpolated) find as much."""

    scenario: Scenario
    noise: float
    floor: int
    launches: float
    screen: float
    right: float
    wrong: float
    fixed_alpha: float
    fixed_right: float
    fixed_wrong: float
    matched_blocks: float

    @property
    def screened(self) -> float:
        return self.launches + (SERVING - 1) * self.screen

    @property
    def unscreened(self) -> float:
        return self.launches + self.scenario.inert

    @property
    def of_fixed(self) -> float:
        return self.screened / (SERVING * FIXED_LAUNCHES)

    @property
    def of_naive(self) -> float:
        return self.screened / (LEGAL_CELLS * FIXED_LAUNCHES)

    @property
    def of_matched(self) -> float:
        return self.screened / (SERVING * self.matched_blocks)

    @property
    def least_of_naive(self) -> float:
        """No design whose verdicts need three launches of each arm can cost less."""
        return ((len(self.scenario.effects) + 1) * LEAST_LAUNCHES + (SERVING - 1) * self.screen) / (LEGAL_CELLS * FIXED_LAUNCHES)


@lru_cache(maxsize=1)
def screen_share() -> float:
    """GPU minutes of a screen over those of a full launch, as the planner assumes them for overlap_grid's model and node."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        settings = settings_from(compose("config", overrides=["+experiment=overlap_grid"]), [config_folder()], {})
    phases = selected_phases(settings)
    full = launch_costs(settings, "sglang", phases, None)
    light = settings.model_copy(update={"model": settings.model.model_copy(update={"load_format": "dummy"})})
    return launch_costs(light, "sglang", {}, None).warm.likely / (full.warm + full.load).likely


def right_share(outcome: Outcome) -> float:
    """BETTER or WORSE for arms with an effect (right sign), SAME for arms without."""
    truth = outcome.cell.truth
    wanted = np.where(truth == 0, SAME, np.where(truth > 0, HIGHER, LOWER))
    return float((outcome.verdict == wanted).mean())


def cost(noise: float, studies: int, floor: int = 12, seed: int = 9, scenario: Scenario = SCENARIOS[0]) -> Cost:
    """Sequential and fixed design at launch noise `noise`. The fixed design has no early stop and one look."""
    arms = len(scenario.effects)
    adaptive = simulate(Cell(arms=arms, noise=noise, effects=scenario.effects, floor=floor), studies, seed)
    launches = float((adaptive.launches.sum(axis=1) + adaptive.baseline_launches).mean())
    wrong, right = float(adaptive.any_difference.mean()), right_share(adaptive)

    def fixed(blocks: int, alpha: float) -> Outcome:
        cell = Cell(arms, noise, effects=scenario.effects, floor=floor, min_blocks=blocks, max_blocks=blocks, stop_early=False, alpha=alpha)
        return simulate(cell, studies, seed)

    for alpha in ALPHAS:
        six = fixed(FIXED_LAUNCHES, alpha)
        if six.any_difference.mean() <= wrong:
            break
    shares = [right_share(fixed(blocks, alpha)) for blocks in range(LEAST_LAUNCHES, FIXED_LAUNCHES)] + [right_share(six)]
    blocks = float(np.interp(right, np.maximum.accumulate(shares), np.arange(LEAST_LAUNCHES, FIXED_LAUNCHES + 1)))
    return Cost(
        scenario, noise, floor, launches, screen_share(), right, wrong, alpha, right_share(six), float(six.any_difference.mean()), blocks
    )


def table(studies: int) -> str:
    """The cost table as Markdown."""
    lines = [
        f"{LEGAL_CELLS} legal cells: {LEGAL_CELLS - SERVING} refused, {SERVING} arms that serve. Fixed design: {SERVING} arms x {FIXED_LAUNCHES} = "
        f"{SERVING * FIXED_LAUNCHES} launches; naive grid: {LEGAL_CELLS} x {FIXED_LAUNCHES} = {LEGAL_CELLS * FIXED_LAUNCHES}. A screen costs "
        f"{screen_share():.3f} of a full launch (`protocol.screen=true`; the planner's assumptions for GLM-5-NVFP4 on eight GPUs). {studies} "
        "studies a row. The fixed design is run at the level at which it makes no more false differences than the sequential one. True effects:",
        "",
        *(
            f"- {one.name}: {one.inert} INERT arms, the others (log ratio) {', '.join(f'{effect:+.2f}' for effect in one.effects)}"
            for one in SCENARIOS
        ),
        "",
        "| scenario | launch noise | noise floor | full launches | with screens | of fixed | of naive | least possible of naive | without screens: of fixed, "
        "of naive | right: sequential, fixed | false difference: sequential, fixed (its level) | fixed blocks that find as much | of these |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [cost(noise, studies, floor, scenario=one) for one in SCENARIOS for floor in (12, 0) for noise in (0.003, 0.01)]
    for row in rows:
        lines.append(
            f"| {row.scenario.name} | {100 * row.noise:.1f} % | {row.floor or 'none'} | {row.launches:.1f} | {row.screened:.1f} | {row.of_fixed:.3f} | "
            f"{row.of_naive:.3f} | {row.least_of_naive:.3f} | {row.unscreened / (SERVING * FIXED_LAUNCHES):.2f}, "
            f"{row.unscreened / (LEGAL_CELLS * FIXED_LAUNCHES):.2f} | {row.right:.3f}, {row.fixed_right:.3f} | "
            f"{row.wrong:.4f}, {row.fixed_wrong:.4f} ({row.fixed_alpha:g}) | {row.matched_blocks:.1f} | {row.of_matched:.2f} |"
        )
    lines.append("")
    for one in SCENARIOS:
        mine = [row for row in rows if row.scenario is one]
        share, grid = max(row.of_fixed for row in mine), max(row.of_naive for row in mine)
        short = max(row.fixed_right - row.right for row in mine)
        lines.append(
            f"- {one.name}. Goal of at most 1/3 of the fixed design: {'met' if share <= 1 / 3 else 'NOT met'} ({share:.3f} at worst; the share of right "
            f"verdicts is then up to {100 * short:.1f} points lower than the fixed design's). Goal of at most 1/10 of the naive grid: "
            f"{'met' if grid <= 0.1 else 'NOT met'} ({grid:.3f} at worst)."
        )
    lines += [
        "",
        f"Why 1/10 of the naive grid is out of reach in the first scenario: a verdict needs {LEAST_LAUNCHES} valid launches of the arm and of the "
        f"baseline, so eight configurations that differ cost 24 launches, 0.125 of {LEGAL_CELLS * FIXED_LAUNCHES}, before the first screen. At 1 % "
        "launch noise more than that is spent on the arms whose 2 and 3 % are two to three noise widths.",
    ]
    return "\n".join(lines)
