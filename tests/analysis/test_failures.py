"""Start success with its interval."""

import pytest
from scipy import stats

from runner.analysis.failures import given_up, starts
from runner.records.schema import Failure
from runner.spec.protocol import Protocol
from tests.analysis.example import launch


@pytest.mark.parametrize(("served", "failed"), [(3, 0), (0, 2), (5, 3)])
def test_interval_is_clopper_pearsons(served: int, failed: int) -> None:
    records = [launch("a", block) for block in range(served)] + [launch("a", 20 + block, outcome="failed") for block in range(failed)]
    state = starts(records, "a")
    expected = stats.binomtest(served, served + failed).proportion_ci(0.95, method="exact")
    assert state.rate == served / (served + failed)
    assert state.interval() == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_nothing_started_has_no_rate() -> None:
    state = starts([launch("b", 0), launch("a", 0, outcome="interrupted")], "a")
    assert state.rate is None
    assert state.interval() == (None, None)


def test_a_crash_during_priming_counts() -> None:
    crash = Failure(kind="crash", confidence=1, retry="once")
    assert starts([launch("a", 0, outcome="failed", failure=crash, purpose="prime")], "a").failed == 1


def test_retries_of_the_protocol() -> None:
    crash = Failure(kind="crash", confidence=1, retry="once")
    once = [launch("a", 0, outcome="failed", failure=crash)]
    assert given_up(once, "a", Protocol(retries=1)) is None
    assert given_up(once, "a", Protocol(retries=0)) is not None
