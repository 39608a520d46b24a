"""A/A launches are one configuration, however their arms are called."""

import numpy as np
import pytest

from runner.analysis.noise import noise_floor
from runner.records.schema import PhaseRecord
from tests.records.example import launch_record


def test_the_names_of_equal_arms_take_no_degrees_of_freedom() -> None:
    """Seen on a real node: five launches under four names left one degree of freedom."""
    values = 20.0 * np.exp(np.random.default_rng(5).normal(0, 0.01, 12))
    launches = [
        launch_record(
            launch=f"b{index}",
            arm=f"A/A {index % 4}",
            purpose="noise",
            block=index // 4,
            started_at=float(index),
            phases=(PhaseRecord(phase="decode_c1", valid=True, metrics={"tpot_p50_ms": float(value)}),),
        )
        for index, value in enumerate(values)
    ]
    entry = noise_floor(launches).entry("decode_c1", "tpot_p50_ms")
    assert entry is not None and entry.df >= 7
    assert entry.between_pct == pytest.approx(100 * float(np.log(values).std(ddof=1)), rel=0.35)
