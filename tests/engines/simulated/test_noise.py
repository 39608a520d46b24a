"""Noise has the asked size and shape, and the same launch can be had again."""

import math
import statistics
from typing import Any

import pytest

from runner.engines.simulated.noise import LaunchFactors, StepNoise, launch_factors
from runner.spec.engine import Simulation


def factors(arm: str = "a", count: int = 400, **settings: Any) -> list[float]:
    simulation = Simulation(**settings).model_dump(mode="json")
    return [launch_factors(simulation, index, arm).decode for index in range(1, count + 1)]


def test_a_launch_can_be_had_again() -> None:
    assert factors() == factors()
    assert factors(arm="b") != factors()
    assert factors(seed=2) != factors()


def test_gaussian_noise_has_its_size() -> None:
    logs = [math.log(factor) for factor in factors(launch_noise_pct=2.0)]
    assert statistics.stdev(logs) == pytest.approx(0.02, rel=0.15)
    assert statistics.mean(logs) == pytest.approx(0, abs=0.004)


def test_heavy_tails_reach_further() -> None:
    def worst(shape: str) -> float:
        logs = [abs(math.log(factor)) for factor in factors(launch_noise_pct=1.0, noise_shape=shape)]
        return max(logs) / statistics.median(logs)

    assert worst("heavy") > 1.5 * worst("gaussian")


def test_bimodal_launches_fall_into_two_groups() -> None:
    found = factors(launch_noise_pct=0.3, noise_shape="bimodal", bimodal_gap_pct=20)
    slow = [factor for factor in found if factor > 1.1]
    assert 0.2 < len(slow) / len(found) < 0.4
    assert statistics.mean(slow) == pytest.approx(1.2, rel=0.01)
    assert not [factor for factor in found if 1.05 < factor < 1.15]


def test_drift_grows_with_the_launch() -> None:
    found = factors(launch_noise_pct=0.0, drift_pct_per_launch=1.0, count=10)
    assert found == pytest.approx([1.01**index for index in range(1, 11)])


def test_the_first_launch_can_be_slower() -> None:
    simulation = Simulation(launch_noise_pct=0.0, first_launch_slower_pct=30).model_dump(mode="json")
    assert launch_factors(simulation, 0, "a").decode == pytest.approx(1.3)
    assert launch_factors(simulation, 1, "a").decode == pytest.approx(1.0)


def test_an_unseen_shape_is_slow_at_first_and_then_no_more() -> None:
    noise = StepNoise(LaunchFactors(1.0, 1.0, 1.0), 0.0, 100.0, "s")
    first = noise.factor("decode", 16)
    later = [noise.factor("decode", 16) for _ in range(300)][-1]
    assert first == pytest.approx(2.0)
    assert later == pytest.approx(1.0, abs=0.001)
    assert noise.factor("decode", 64) == pytest.approx(2.0), "another shape is cold again"


def test_steps_wander_around_their_launch() -> None:
    noise = StepNoise(LaunchFactors(1.0, 1.0, 1.0), 1.0, 0.0, "s")
    steps = [noise.factor("decode", 1) for _ in range(20000)]
    assert statistics.mean(steps) == pytest.approx(1.0, abs=0.005)
    assert statistics.stdev(steps) == pytest.approx(0.01, rel=0.2)
