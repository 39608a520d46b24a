"""`make bench-decide`: error rates, power, coverage and cost of the verdicts, from simulated studies. No timed asserts.

Usage: python -m tests.bench.decide_bench [studies a cell, default 2000] [output file, default tests/bench/output/decide.md]"""

import sys
import time
import zlib
from pathlib import Path

import numpy as np

from runner.analysis.verdicts import HIGHER, LOWER, SAME
from tests.bench import decide_cost
from tests.bench.decide_sim import NOISIER, SHAPES, UNEQUAL, Cell, lower_bound, simulate, upper_bound

ARMS, NOISES, FLOORS = (1, 4, 8), (0.002, 0.01, 0.03), (12, 0)
OUTPUT = Path(__file__).parent / "output" / "decide.md"


def seed_of(*parts: object) -> int:
    """A seed of its own for each cell, the same on every machine."""
    return zlib.crc32(repr(parts).encode())


def errors(studies: int, floor: int) -> str:
    """No effect (false BETTER or WORSE) and every arm exactly at the margin (false SAME). Bounds are one-sided 95 %, exact."""
    lines = [
        "| noise | launch noise | arms | false difference | bound | false SAME at the margin | bound | intervals cover (all arms) | at the margin | "
        "SAME at 0 | launches an arm | bimodal seen |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    worst = {equal: [0.0, 0.0, 1.0] for equal in (True, False)}
    for shape in SHAPES:
        for noise in NOISES:
            for arms in ARMS:
                seed = seed_of(shape, noise, arms, floor)
                null = simulate(Cell(arms, noise, shape, floor=floor), studies, seed)
                edge = simulate(Cell(arms, noise, shape, effects=(float(np.log(1.01)),), floor=floor), studies, seed + 1)
                false, same = int(null.any_difference.sum()), int(edge.any_false_same.sum())
                bounds = upper_bound(false, studies), upper_bound(same, studies)
                cover = float(null.covered.mean()), float(edge.covered.mean())
                so_far = worst[shape != UNEQUAL]
                worst[shape != UNEQUAL] = [max(so_far[0], bounds[0]), max(so_far[1], bounds[1]), min(so_far[2], *cover)]
                lines.append(
                    f"| {shape} | {100 * noise:g} % | {arms} | {100 * false / studies:.2f} % | {100 * bounds[0]:.2f} % | {100 * same / studies:.2f} % | "
                    f"{100 * bounds[1]:.2f} % | {100 * cover[0]:.1f} % | {100 * cover[1]:.1f} % | {100 * (null.verdict == SAME).mean():.0f} % | "
                    f"{null.launches.mean():.2f} | {100 * null.bimodal.mean():.0f} % |"
                )
    summary = " ".join(summary_of(worst[equal], equal) for equal in (True, False))
    return "\n".join([summary, "", *lines])


def summary_of(worst: list[float], equal: bool) -> str:
    where = "Where all arms vary alike: worst" if equal else f"With one arm that varies {NOISIER:g} times as much: worst"
    return (
        f"{where} bound of a false difference {100 * worst[0]:.2f} %, of a false SAME {100 * worst[1]:.2f} % (goal: both under 6 %); least "
        f"coverage {100 * worst[2]:.1f} % (goal: 94 % or more)."
    )


def power(studies: int) -> str:
    """What is found, how soon, and how far raw and adjusted estimates are off when an arm was called different."""
    lines = [
        "| noise floor | arms | 3 % at 0.5 % noise found within 4 blocks | bound below | SAME at 0 with 0.3 % noise within 6 blocks | bound below | launches an arm |",
        "|---|---|---|---|---|---|---|",
    ]
    for floor in FLOORS:
        for arms in ARMS:
            seed = seed_of("power", floor, arms)
            effect = simulate(Cell(arms, 0.005, effects=(-0.03,) + (0.0,) * (arms - 1), floor=floor), studies, seed)
            found = int(((effect.verdict[:, 0] == LOWER) & (effect.decided_at[:, 0] <= 4) & (effect.decided_at[:, 0] > 0)).sum())
            none = simulate(Cell(arms, 0.003, floor=floor), studies, seed + 1)
            same = int(((none.verdict[:, 0] == SAME) & (none.decided_at[:, 0] <= 6) & (none.decided_at[:, 0] > 0)).sum())
            lines.append(
                f"| {floor or 'none'} | {arms} | {100 * found / studies:.1f} % | {100 * lower_bound(found, studies):.1f} % | "
                f"{100 * same / studies:.1f} % | {100 * lower_bound(same, studies):.1f} % | {none.launches.mean():.2f} |"
            )
    return "\n".join(lines)


def winners(studies: int) -> str:
    """Mean estimate of arms that were called different, in percent of the truth."""
    lines = ["| true effect | launch noise | called different | raw estimate / truth | adjusted / truth |", "|---|---|---|---|---|"]
    for truth, noise in ((0.01, 0.005), (0.015, 0.005), (0.02, 0.005), (0.03, 0.01)):
        outcome = simulate(Cell(4, noise, effects=(truth, 0.0, 0.0, 0.0)), studies, seed_of("winner", truth, noise))
        won = np.isin(outcome.verdict[:, 0], (HIGHER, LOWER))
        if won.any():
            raw, adjusted = outcome.estimate[won, 0].mean() / truth, outcome.adjusted[won, 0].mean() / truth
            lines.append(f"| {100 * truth:g} % | {100 * noise:g} % | {100 * won.mean():.0f} % | {raw:.2f} | {adjusted:.2f} |")
    return "\n".join(lines)


def other_day(studies: int) -> str:
    """The noise floor was measured on a quieter or noisier day than the study's."""
    lines = ["| floor's noise / study's | arms | false difference | bound |", "|---|---|---|---|"]
    for scale in (0.5, 0.7, 1.5):
        for arms in ARMS:
            outcome = simulate(Cell(arms, 0.01, floor_scale=scale), studies, seed_of("day", scale, arms))
            false = int(outcome.any_difference.sum())
            lines.append(f"| {scale} | {arms} | {100 * false / studies:.2f} % | {100 * upper_bound(false, studies):.2f} % |")
    return "\n".join(lines)


def budgets(studies: int) -> str:
    """A budget that ends a study early: errors must hold whatever it cuts off."""
    lines = [
        "| arms | launch noise | budget, launches | false difference | bound | false SAME at the margin | bound | intervals cover | 3 % found | launches |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arms in (4, 8):
        for noise in (0.003, 0.01):
            for blocks in (3.5, 4.5):
                room, seed = int((arms + 1) * blocks), seed_of("budget", arms, noise, blocks)
                effect = simulate(Cell(arms, noise, effects=(-0.03,) + (0.0,) * (arms - 1), budget=room), studies, seed)
                edge = simulate(Cell(arms, noise, effects=(float(np.log(1.01)),), budget=room), studies, seed + 1)
                false, same = int(effect.any_difference.sum()), int(edge.any_false_same.sum())
                used = effect.launches.sum(axis=1) + effect.baseline_launches
                lines.append(
                    f"| {arms} | {100 * noise:g} % | {room} | {shares(false, same, studies)} | {100 * effect.covered.mean():.1f} % | "
                    f"{100 * (effect.verdict[:, 0] == LOWER).mean():.0f} % | {used.mean():.1f} (at most {used.max():.0f}) |"
                )
    return "\n".join(lines)


def shares(false: int, same: int, studies: int) -> str:
    """Four cells: the share of studies with a false difference and its bound, with a false SAME and its bound."""
    return " | ".join(f"{100 * count / studies:.2f} % | {100 * upper_bound(count, studies):.2f} %" for count in (false, same))


def losses(studies: int) -> str:
    """The node is lost in the first, second or fifth block: baseline and every second arm are missing there, one block more is made."""
    lines = [
        "| arms | lost block | false difference | bound | false SAME at the margin | bound | intervals cover | at the margin |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arms in ARMS:
        for lost in (0, 1, 4):
            seed = seed_of("lost", arms, lost)
            null = simulate(Cell(arms, 0.01, lost=lost), studies, seed)
            edge = simulate(Cell(arms, 0.004, effects=(float(np.log(1.01)),), lost=lost), studies, seed + 1)
            false, same = int(null.any_difference.sum()), int(edge.any_false_same.sum())
            lines.append(
                f"| {arms} | {lost + 1} | {shares(false, same, studies)} | {100 * null.covered.mean():.1f} % | {100 * edge.covered.mean():.1f} % |"
            )
    return "\n".join(lines)


def report(studies: int) -> str:
    """The whole report as Markdown."""
    parts = [
        "# Verdicts on simulated studies (SIMULATED)",
        f"{studies} studies a cell, 3 to 8 blocks, alpha 5 %, margin 1 %. Noise: gaussian; heavy (t with 3 df, same standard deviation); drift "
        "(0.3 % a launch on top); bimodal (two speeds 20 % apart, fixed at launch); first (the study's first launch 5 % slower).",
        "## With the node's noise floor (12 A/A launches of the same node)",
        errors(studies, 12),
        "## Without a noise floor",
        errors(studies, 0),
        "## Power",
        power(studies),
        "## Winner's curse",
        winners(studies),
        "## A noise floor from another kind of day",
        other_day(studies),
        "## A budget that truncates",
        budgets(studies),
        "## A lost block that is made up for",
        losses(studies),
        "## Cost",
        decide_cost.table(studies),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> None:
    studies = int(arguments[0]) if arguments else 2000
    output = Path(arguments[1]) if len(arguments) > 1 else OUTPUT
    began = time.monotonic()
    text = report(studies)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - began:.0f} s; written to {output}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
