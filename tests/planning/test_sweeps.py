"""A phase with several rates or concurrencies is that many phases."""

from typing import Any

import pytest

from runner.errors import UserError
from runner.spec.sweeps import expand_sweeps, write_out

OPEN = {"arrival": "poisson", "seconds": 5}


def test_a_rate_sweep_is_one_phase_a_rate_wherever_it_is_named() -> None:
    tree = {
        "workload": {"name": "w", "phases": {"a": {}, "open": {**OPEN, "rate": [2, 0.5]}, "d": {"concurrency": [1, 16]}}},
        "phases": ["d_c16", "open"],
        "protocol": {"primary": [{"metric": "ttft_p50_ms", "phases": ["open"]}, {"metric": "tpot_p50_ms"}]},
    }
    done = write_out(tree)
    phases = done["workload"]["phases"]
    assert list(phases) == ["a", "open_r2", "open_r0.5", "d_c1", "d_c16"]
    assert phases["open_r0.5"] == {**OPEN, "rate": 0.5}
    assert done["phases"] == ["d_c16", "open_r2", "open_r0.5"]
    assert done["protocol"]["primary"] == [{"metric": "ttft_p50_ms", "phases": ["open_r2", "open_r0.5"]}, {"metric": "tpot_p50_ms"}]


def test_what_has_no_sweep_stays_and_other_shapes_are_left_to_the_validation() -> None:
    for tree in (
        {"workload": {"phases": {"a": {"rate": 2}}}, "phases": []},
        {"workload": None},
        {"workload": {"phases": {}}, "phases": "a"},
    ):
        assert write_out(tree) == tree


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ({"p": {"rate": []}}, "at least one value"),
        ({"p": {"rate": [1, 1]}}, "each once"),
        ({"p": {"rate": [1, 2], "concurrency": [1, 2]}}, "only one of"),
        ({"p": {"rate": [1]}, "p_r1": {}}, "there already"),
    ],
)
def test_what_is_no_sweep_is_said(phases: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        expand_sweeps(phases)
