"""Arms that are clearly noisier are set aside: the quiet ones are judged as if they had not been there."""

import numpy as np
import pytest

from runner.analysis.blockfit import Fit, fit_blocks
from runner.analysis.modes import study_gaps
from runner.analysis.noisy_arms import Aside, set_aside
from runner.analysis.variance import Prior, launch_variance
from runner.analysis.verdicts import HIGHER, LOWER, UNRESOLVED, Rules, judge_table

RNG_SEED = 5


def refit(values: np.ndarray, mask: np.ndarray, slots: np.ndarray) -> Fit:
    return fit_blocks(values, mask, slots, slope=False)


def aside_of(values: np.ndarray, mask: np.ndarray | None = None, floor: bool = False) -> tuple[Fit, Fit, Aside]:
    mask = np.ones_like(values, bool) if mask is None else mask
    slots = np.zeros_like(values)
    return set_aside(values, mask, slots, refit(values, mask, slots), refit, floor)


def draws(studies: int, blocks: int, scale: list[float], block_sd: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(RNG_SEED)
    return np.array(scale) * rng.standard_normal((studies, blocks, len(scale))) + block_sd * rng.standard_normal((studies, blocks, 1))


@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize(("columns", "blocks"), [(5, 3), (3, 4), (9, 3)])
def test_like_arms_are_hardly_ever_set_aside(columns: int, blocks: int, floor: bool) -> None:
    _, _, aside = aside_of(draws(4000, blocks, [1.0] * columns, block_sd=2.0 if floor else 0.0), floor=floor)
    assert aside.noisy.any(axis=1).mean() < 0.02


def test_the_pool_of_the_quiet_arms_does_not_know_the_noisy_one() -> None:
    values = draws(1000, 3, [1.0, 1.0, 1.0, 1.0, 20.0])
    report, quiet, aside = aside_of(values)
    assert aside.noisy[:, 4].mean() > 0.93 and aside.noisy[:, :4].mean() < 0.01
    spread = launch_variance(quiet, None, aside)
    assert np.median(spread.variance[:, 0]) < 1.3
    assert np.median(spread.variance[:, 3]) > 50 and np.median(spread.df[:, 3]) < 4
    alone = refit(values[:, :, :4], np.ones((1000, 3, 4), bool), np.zeros((1000, 3, 4)))
    set_apart = aside.noisy[:, 4] & ~aside.noisy[:, :4].any(axis=1)
    assert np.allclose(report.estimate[set_apart, :3], alone.estimate[set_apart])


def test_where_blocks_differ_freely_the_noise_is_seen_against_what_the_others_say_of_the_block() -> None:
    _, _, aside = aside_of(draws(500, 4, [1.0, 1.0, 1.0, 1.0, 1.0, 20.0], block_sd=50.0))
    assert aside.noisy[:, 5].mean() > 0.93 and aside.noisy[:, :5].mean() < 0.01


def test_two_noisy_arms_are_both_set_aside_and_missing_launches_do_no_harm() -> None:
    values = draws(500, 4, [1.0, 1.0, 1.0, 30.0, 1.0, 25.0])
    mask = np.ones_like(values, bool)
    mask[:, 0, 1] = mask[:, 2, 3] = mask[:, 1, 0] = False
    _, quiet, aside = aside_of(np.where(mask, values, np.nan), mask)
    assert aside.noisy[:, 3].mean() > 0.9 and aside.noisy[:, 5].mean() > 0.9
    assert np.isfinite(quiet.rss).all()


def test_the_floor_steadies_the_quiet_arms_only() -> None:
    _, quiet, aside = aside_of(draws(500, 3, [1.0, 1.0, 1.0, 1.0, 20.0]), floor=True)
    spread = launch_variance(quiet, Prior(1.0, 11), aside)
    assert np.median(spread.variance[:, 0]) == pytest.approx(1.0, abs=0.3)
    assert np.median(spread.variance[:, 3]) > 50


def test_decode_without_graphs_does_not_hide_what_the_other_arms_show() -> None:
    """TPOT p50 at one and at 16 streams of the arms of one H200 in three blocks (experiments/h200_single): baseline, chunk 2048, overlap
    schedule off, no decode graphs, page 64. With one pool for all, nothing below 20 % could be seen."""
    at_16 = np.log([[6.150, 6.176, 7.156, 36.11, 6.187], [6.066, 6.091, 7.419, 40.06, 6.068], [6.052, 6.081, 7.005, 31.41, 6.045]])[None]
    mask, slots = np.ones_like(at_16, bool), np.zeros_like(at_16)
    rules = Rules(alpha=0.0127, family=4, looks=(3, 4, 5, 6), most=6, margin_low=-0.01, margin_high=0.01)
    result = judge_table(at_16, mask, slots, rules)
    assert result is not None
    assert list(result.last.noisy[0]) == [False, True, True, False]
    assert (result.high - result.low)[0, [0, 3]].max() < 0.1, "0.4 % and 0.2 % of the quiet arms are known within 5 %"
    assert list(result.verdict[0, [0, 3]]) == [UNRESOLVED, UNRESOLVED] and result.verdict[0, 2] == HIGHER
    assert study_gaps(at_16, mask)[0] == 0, "one arm's noise is not two speeds of the node"
    assert LOWER not in result.verdict


def test_a_drift_over_the_positions_is_not_taken_for_noise() -> None:
    """The fit has a slope over positions; an arm that stands early in one block and late in the next is not noisy for that."""
    rng = np.random.default_rng(RNG_SEED)
    slots = np.argsort(rng.random((1000, 4, 6)), axis=2).astype(float)
    values = 0.1 * rng.standard_normal(slots.shape) + 3.0 * slots
    mask = np.ones_like(values, bool)

    def sloped(*data: np.ndarray) -> Fit:
        return fit_blocks(*data, slope=True)

    _, _, aside = set_aside(values, mask, slots, sloped(values, mask, slots), sloped, True)
    assert aside.noisy.any(axis=1).mean() < 0.03
