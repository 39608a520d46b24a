"""The chance of a verdict is a probability that comes true."""

import numpy as np
import pytest

from runner.analysis.futility import chance_of_verdict
from runner.analysis.verdicts import HIGHER, LOWER, SAME, Rules, combine, judge_table, look

LAST = 8


def rules(noise_known: bool = False) -> Rules:
    return Rules(0.05, 4, tuple(range(3, LAST + 1)), LAST, float(np.log(0.99)), float(np.log(1.01)))


@pytest.mark.parametrize("noise", [0.004, 0.01])
def test_said_and_seen_agree_on_average(noise: float) -> None:
    """Under a flat prior over effects the mean predicted chance is about the share that gets its verdict at the last look."""
    rng = np.random.default_rng(1)
    studies, arms = 1500, 4
    effects = rng.uniform(-0.04, 0.04, (studies, 1, arms))
    values = noise * rng.standard_normal((studies, LAST, arms + 1))
    values[:, :, 1:] += effects
    mask, slots = np.ones_like(values, bool), np.zeros_like(values)
    one = look(values[:, :4], mask[:, :4], slots[:, :4], rules().levels()[1], rules())
    said = chance_of_verdict(combine([one], rules()), rules())
    last = look(values, mask, slots, rules().levels()[-1], rules())
    seen = np.isin(combine([last], rules()).verdict, (HIGHER, LOWER, SAME))
    assert said.mean() == pytest.approx(seen.mean(), abs=0.04)
    sure, hopeless = said > 0.95, said < 0.1
    assert seen[sure].mean() > 0.9
    assert hopeless.sum() < 50 or seen[hopeless].mean() < 0.2


def test_unknown_is_never_hopeless() -> None:
    values = np.zeros((1, 3, 3))
    mask = np.ones_like(values, bool)
    mask[0, :, 2] = False
    result = judge_table(values, mask, np.zeros_like(values), rules())
    assert result is not None
    assert chance_of_verdict(result, rules())[0, 1] == 1
