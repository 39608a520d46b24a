"""Hardly any data, or none that is valid: words instead of numbers, and no warning of the arithmetic below."""

import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from runner.analysis.judge import judge
from runner.analysis.next_block import next_block
from runner.analysis.noise import NoiseEntry, NoiseFloor, noise_floor
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol
from tests.analysis.example import TPOT, launch, measured, plan

ARMS = {
    "baseline": {"a": "off", "b": "off"},
    "one": {"a": "on", "b": "off"},
    "two": {"a": "off", "b": "on"},
    "both": {"a": "on", "b": "on"},
}
FLOOR = NoiseFloor(entries=(NoiseEntry(phase="decode_c1", metric=TPOT, launches=12, between_pct=0.3, df=10),))


def studies() -> dict[str, Sequence[LaunchRecord]]:
    rng, names = np.random.default_rng(1), list(ARMS)
    value = {"decode_c1": {TPOT: 10.0}}
    one_block = measured(rng, names, 1)
    equal = [launch(name, block, position, metrics=value) for block in range(3) for position, name in enumerate(names)]
    return {
        "nothing": [],
        "one launch": [launch("baseline", 0, metrics=value)],
        "one block": one_block,
        "one block, one arm": measured(rng, names[:2], 1),
        "two blocks": measured(rng, names, 2),
        "arms never beside the baseline": [launch("baseline", 0, metrics=value), *measured(rng, names[1:], 3, start=1)],
        "no phase is valid": [launch(name, block, metrics=value, valid=False) for block in range(3) for name in names],
        "equal to the last digit": equal,
        "zero and nothing": [launch(name, 0, metrics={"decode_c1": {TPOT: 0.0, "x_s": float("nan")}}) for name in names],
        "one confirmed pair": [*measured(rng, names, 3, effects={"one": -0.1}), *measured(rng, names[:2], 1, start=3, purpose="confirm")],
    }


@pytest.mark.parametrize("noise", [None, FLOOR], ids=["no floor", "floor"])
@pytest.mark.parametrize("name", studies())
def test_no_warning_whatever_is_missing(name: str, noise: NoiseFloor | None) -> None:
    launches, described = studies()[name], plan(ARMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decision = judge(described, launches, Protocol(), noise=noise)
        one_look = judge(described, launches, Protocol(), noise=noise, looks=(3,))
        next_block(described, launches, Protocol(), noise, 0.0)
        noise_floor(launches)
    decided = {result.verdict for said in (decision, one_look) for arm in said.arms for result in arm.hypotheses}
    if name not in ("equal to the last digit", "one confirmed pair"):
        assert decided <= {"UNRESOLVED"}, "fewer than three launches beside the baseline give no verdict"
    for row in decision.noise["rows"]:
        assert row["launch_sd_pct"] is None or np.isfinite(row["launch_sd_pct"])
