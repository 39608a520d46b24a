"""The guard's judgement, as statistics: false alarms over many A/A studies and power at five spreads, for several kinds of noise."""

import numpy as np
import pytest

from runner.analysis.outputs import GuardVerdict, compare
from runner.records.schema import Fingerprint

PROMPTS, POSITIONS = 4, 63
TOKENS = tuple(tuple(range(p, p + 16)) for p in range(PROMPTS))


def launch(rng: np.random.Generator, noise: str = "positions", spread: float = 0.002, shift: float = 0.0, **more: object) -> Fingerprint:
    """One launch's fingerprint around one truth; `spread` is the standard deviation of one position between launches."""
    truth = -np.random.default_rng(0).exponential(2.0, (PROMPTS, POSITIONS))
    if noise == "positions":
        noisy = rng.normal(0, spread, truth.shape)
    elif noise == "prompts":
        noisy = np.repeat(rng.normal(0, spread, (PROMPTS, 1)), POSITIONS, axis=1)
    elif noise == "launch":
        noisy = np.full(truth.shape, rng.normal(0, spread))
    elif noise == "heavy":
        noisy = rng.standard_t(3, truth.shape) * spread / np.sqrt(3)
    else:
        raise ValueError(noise)
    rows = truth + noisy + shift
    return Fingerprint(prompts_hash="h", logprobs=tuple(map(tuple, rows.tolist())), tokens=TOKENS, **more)  # type: ignore[arg-type]


def study(seed: int, noise: str, arms: int, baselines: int, shift: float = 0.0) -> GuardVerdict:
    rng = np.random.default_rng(seed)
    return compare([launch(rng, noise, shift=shift) for _ in range(arms)], [launch(rng, noise) for _ in range(baselines)])


@pytest.mark.parametrize("noise", ["positions", "prompts", "launch", "heavy"])
@pytest.mark.parametrize("launches", [2, 3, 5])
def test_false_alarms_of_a_a_launches_are_at_most_one_percent(noise: str, launches: int) -> None:
    alarms = sum(study(seed, noise, launches, launches).broken for seed in range(200))
    assert alarms <= 2


def test_false_alarms_stay_at_one_percent_when_each_a_a_launch_is_judged_alone() -> None:
    rng = np.random.default_rng(5)
    baseline = [launch(rng) for _ in range(3)]
    alarms = sum(compare([launch(rng)], baseline).broken for _ in range(200))
    assert alarms <= 2


@pytest.mark.parametrize("noise", ["positions", "heavy"])
@pytest.mark.parametrize(("arms", "baselines"), [(1, 3), (3, 3), (5, 5)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_shift_of_five_spreads_is_caught(noise: str, arms: int, baselines: int, sign: int) -> None:
    caught = sum(study(seed, noise, arms, baselines, sign * 5 * 0.002).broken for seed in range(100))
    assert caught >= 99


def test_one_wrong_launch_of_three_breaks_the_arm() -> None:
    rng = np.random.default_rng(1)
    baseline = [launch(rng) for _ in range(3)]
    arm = [launch(rng), launch(rng), launch(rng, shift=0.1)]
    assert compare(arm, baseline).broken


def test_a_pattern_without_a_mean_shift_is_caught() -> None:
    rng = np.random.default_rng(2)
    baseline = [launch(rng) for _ in range(4)]
    good = launch(rng)
    swapped = [tuple(np.array(row) + 0.3 * np.resize([1, -1, 0], POSITIONS)) for row in good.logprobs]
    wrong = good.model_copy(update={"logprobs": tuple(tuple(map(float, row)) for row in swapped)})
    verdict = compare([wrong], baseline)
    assert verdict.broken
    assert "root mean square" in verdict.reason


def test_a_baseline_that_repeats_exactly_allows_rounding_and_no_more() -> None:
    rng = np.random.default_rng(3)
    exact = [launch(rng, spread=0.0) for _ in range(3)]
    assert compare([launch(rng, spread=0.01)], exact).state == "pass"
    assert compare([launch(rng, spread=0.0, shift=0.2)], exact).broken


def test_decoding_that_leaves_the_path_at_once_is_broken_though_prefill_is_right() -> None:
    rng = np.random.default_rng(4)
    baseline = [launch(rng) for _ in range(3)]
    wrong = launch(rng).model_copy(update={"tokens": tuple(tuple(t + 1000 for t in row) for row in TOKENS)})
    late = launch(rng).model_copy(update={"tokens": tuple((*row[:10], *(t + 1000 for t in row[10:])) for row in TOKENS)})
    assert "greedy tokens" in compare([wrong], baseline).reason
    assert compare([late], baseline).state == "pass"


@pytest.mark.parametrize("state", ["nan", "wrong_length"])
def test_nan_and_wrong_lengths_break_an_arm_but_not_when_the_baseline_has_them(state: str) -> None:
    rng = np.random.default_rng(6)
    good = [launch(rng) for _ in range(3)]
    bad = launch(rng).model_copy(update={"state": state})
    assert compare([good[0], bad], good).broken
    assert compare([bad], [*good, bad]).state == "cannot_tell"


def test_dummy_weights_and_a_single_baseline_launch_cannot_tell() -> None:
    rng = np.random.default_rng(7)
    dummy = launch(rng).model_copy(update={"state": "cannot_tell", "note": "all prompt log-probabilities are equal, as with dummy weights"})
    verdict = compare([dummy], [dummy, dummy])
    assert verdict.state == "cannot_tell"
    assert "dummy weights" in verdict.reason
    assert compare([launch(rng)], [launch(rng)]).state == "cannot_tell"
    assert compare([], [launch(rng)]).state == "cannot_tell"


def test_a_fallen_task_score_breaks_an_arm() -> None:
    rng = np.random.default_rng(8)
    baseline = [launch(rng, task_score=score) for score in (0.80, 0.82, 0.81)]
    assert "task score" in compare([launch(rng, task_score=0.5)], baseline).reason
    assert not compare([launch(rng, task_score=0.78)], baseline).broken
