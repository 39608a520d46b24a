"""The noise floor: what is estimated, what it says can be resolved, and that it survives JSON."""

import json

import numpy as np
import pytest

from runner.analysis.floor_spread import floor_spread
from runner.analysis.noise import NoiseFloor, noise_floor, resolves
from tests.analysis.example import TPOT, launch, measured


def aa(blocks: int = 12, seed: int = 1, **extra: object) -> NoiseFloor:
    return noise_floor(measured(np.random.default_rng(seed), ["baseline"], blocks, purpose="noise", **extra))  # type: ignore[arg-type]


def test_spread_is_estimated_without_bias() -> None:
    values = 0.01 * np.random.default_rng(1).standard_normal((3000, 12)) + 0.002 * np.arange(12)
    spread = floor_spread(values)
    assert np.sqrt(np.mean(spread.sd**2)) == pytest.approx(0.01, rel=0.03)
    assert np.mean(spread.slope) == pytest.approx(0.002, rel=0.05)
    assert spread.df == 9  # a line takes two, and the first launch is not counted on


def test_drift_is_reported_and_taken_out_of_the_spread() -> None:
    entry = aa(shift=lambda block: 0.01 * block, noise=0.002).entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.drift_pct == pytest.approx(1.0, rel=0.1)
    assert entry.drift_p < 1e-6
    assert entry.between_pct == pytest.approx(0.2, rel=0.6)


def test_slow_first_launch_does_not_hide_how_quiet_the_node_is() -> None:
    entry = aa(shift=lambda block: 0.05 * (block == 0), noise=0.002).entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.between_pct < 0.4


def test_a_cold_first_launch_is_seen_among_five() -> None:
    """Two H200s: 1,326, then 3,041, 2,975, 2,979 and 3,018 output tokens a second. The floor had been 29 %."""
    values = np.log([1326.0, 3041.0, 2975.0, 2979.0, 3018.0])
    assert floor_spread(values[None, :]).sd[0] < 0.02
    assert floor_spread(values[None, :4]).sd[0] > 0.2, "three launches cannot tell"


def test_two_speeds_are_reported_with_their_distance() -> None:
    floor = aa(shift=lambda block: float(np.log(1.2)) * (block % 3 == 0), noise=0.002)
    entry = floor.entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.modes == 2
    assert entry.mode_gap_pct == pytest.approx(100 * np.log(1.2), rel=0.05)
    assert floor.gap("decode_c1", TPOT) == pytest.approx(np.log(1.2), rel=0.05)
    assert floor.gap("decode_c128", TPOT) == 0


def test_autocorrelation_has_the_sign_of_the_series() -> None:
    rng = np.random.default_rng(4)
    walk = np.convolve(rng.standard_normal(60), np.ones(5) / 5, mode="valid") * 0.01
    positive = aa(40, noise=0.0, shift=lambda block: float(walk[block])).entry("decode_c1", TPOT)
    alternating = aa(40, noise=0.0001, shift=lambda block: 0.01 * (-1) ** block).entry("decode_c1", TPOT)
    assert positive is not None
    assert alternating is not None
    assert positive.autocorrelation > 0.4
    assert alternating.autocorrelation < -0.8


def test_within_launch_spread_from_repeats_or_from_the_phase_itself() -> None:
    record = launch("baseline", 0, metrics={"decode_c1": {TPOT: 10.0}})
    twice = record.model_copy(update={"phases": (*record.phases, record.phases[0].model_copy(update={"metrics": {TPOT: 10.2}}))})
    entry = noise_floor([twice, launch("baseline", 1, metrics={"decode_c1": {TPOT: 10.0}})]).entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.within_pct == pytest.approx(100 * np.std(np.log([10, 10.2]), ddof=1))
    said = record.model_copy(update={"phases": (record.phases[0].model_copy(update={"within_pct": {TPOT: 0.7}}),)})
    entry = noise_floor([said]).entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.within_pct == pytest.approx(0.7)
    assert aa().entries[0].within_pct is None


def test_resolved_effect_shrinks_with_blocks_and_is_found_as_often_as_said() -> None:
    entry = aa(noise=0.01).entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.resolves_pct[3] > entry.resolves_pct[6] > entry.resolves_pct[12]
    rng = np.random.default_rng(8)
    effect = resolves(0.01, 1e6, 6)
    difference = effect + 0.01 * (rng.standard_normal((4000, 6)) - rng.standard_normal((4000, 6)))
    # The floor's own degrees of freedom (10 for a long history) and the study's five.
    from runner.analysis.dunnett import critical_value

    error = np.sqrt((10 * 2 * 0.01**2 + 5 * difference.var(axis=1, ddof=1)) / 15 / 6)
    assert np.mean(difference.mean(axis=1) / error > critical_value(0.05, 1, 15)) == pytest.approx(0.8, abs=0.05)


def test_json_round_trip() -> None:
    floor = aa()
    text = json.dumps(floor.to_json(), allow_nan=False)
    assert NoiseFloor.model_validate(json.loads(text)) == floor
    assert floor.node == "node"
    assert floor.simulated


def test_prior_and_least_variance() -> None:
    prior = aa(noise=0.01).prior("decode_c1", TPOT)
    assert prior is not None
    assert 0 < float(prior.least) < float(prior.variance)
    assert prior.effective_df < prior.df
    assert aa().prior("decode_c1", "nothing") is None


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_launches_give_what_they_can(count: int) -> None:
    floor = aa(count)
    assert floor.launches == count
    assert len(floor.entries) == min(count, 1)
    json.dumps(floor.to_json(), allow_nan=False)


def test_invalid_phases_and_failed_launches_are_left_out() -> None:
    bad = [launch("baseline", 3, metrics={"decode_c1": {TPOT: 99.0}}, valid=False), launch("baseline", 4, outcome="failed")]
    good = measured(np.random.default_rng(1), ["baseline"], 3)
    assert noise_floor(good + bad).entries == noise_floor(good).entries


def test_several_equal_arms_are_centred_each() -> None:
    records = measured(np.random.default_rng(1), ["baseline", "again"], 40, effects={"again": 0.5}, noise=0.003)
    entry = noise_floor(records).entry("decode_c1", TPOT)
    assert entry is not None
    assert entry.between_pct == pytest.approx(0.3, rel=0.3)
    assert entry.modes == 1
