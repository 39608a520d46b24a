"""Times in records: a clock that is set while a study runs changes neither a duration nor the order of anything."""

import os
from pathlib import Path

import pytest

from runner.execution.study import open_study, studies
from runner.records.clock import SteadyClock
from runner.records.journal import Journal, read_journal
from runner.records.paths import RootPaths
from tests.execution.example import small_plan


class Clocks:
    """A wall clock and a monotonic one, both by hand."""

    def __init__(self, wall: float = 1000.0) -> None:
        self.wall, self.monotonic = wall, 50.0

    def pass_(self, seconds: float, jump: float = 0.0) -> None:
        self.wall += seconds + jump
        self.monotonic += seconds


@pytest.mark.parametrize("jump", [-86400.0, -1.0, 3600.0])
def test_a_jump_of_the_wall_clock_is_no_time_that_passed(jump: float) -> None:
    clocks = Clocks()
    clock = SteadyClock(wall=lambda: clocks.wall, monotonic=lambda: clocks.monotonic)
    began = clock()
    clocks.pass_(2.5, jump)
    assert began == 1000.0
    assert clock() - began == 2.5


def test_a_clock_that_was_set_back_between_two_drivers_goes_on_from_the_last_record() -> None:
    clocks = Clocks(wall=400.0)
    clock = SteadyClock(not_before=1000.0, wall=lambda: clocks.wall, monotonic=lambda: clocks.monotonic)
    clocks.pass_(1.0)
    assert clock() == 1001.0


def test_a_journal_that_is_opened_again_never_runs_backwards(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path, clock=lambda: 4e9)  # a clock that stood in the year 2096
    first.append("study_started")
    first.close()
    again = Journal(path)
    again.append("study_resumed")
    again.close()
    times = [entry["t"] for entry in read_journal(path)]
    assert again.last_time == 4e9
    assert times == sorted(times)


def test_the_newest_study_is_the_one_begun_last_though_the_clock_was_set_back(tmp_path: Path) -> None:
    root = RootPaths(tmp_path)
    first = open_study(root, small_plan(), name="first", new=False, config={})
    first.close()
    os.utime(first.paths.plan, (4e9, 4e9))
    open_study(root, small_plan(), name="second", new=False, config={}).close()
    assert [paths.name for paths in studies(root)] == ["second", "first"]
