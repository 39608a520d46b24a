"""The history of nights: the order is that in which they were held."""

from runner.actions.history import EXPERIMENT, History, Observed
from runner.analysis.nightly import Night


def night(study: str, at: float) -> Night:
    return Night(study=study, at=at, identity={EXPERIMENT: "nightly"}, values={"a|p|m": (1.0,)})


def test_a_night_after_the_clock_was_set_back_is_compared_with_those_before_it() -> None:
    history = History(node="n", simulated=True)
    for study, at in (("monday", 2000.0), ("tuesday", 3000.0)):
        history = history.with_night(night(study, at), Observed())
    set_back = night("wednesday", 1000.0)
    assert [each.study for each in history.before(set_back)] == ["monday", "tuesday"]
    history = history.with_night(set_back, Observed())
    again = history.with_night(night("tuesday", 3000.5), Observed())
    assert [each.study for each in again.nights] == ["monday", "tuesday", "wednesday"]
    assert [each.study for each in again.before(night("tuesday", 3000.5))] == ["monday"]
