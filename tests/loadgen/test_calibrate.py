"""The stamping server and the comparison with it."""

from pathlib import Path

import pytest

from runner.loadgen.calibrate import Reported, Stamped, calibrate, echo_server, errors_ms, read_log, reported_by
from runner.loadgen.driver import ProcessDriver
from runner.loadgen.job import Job, LengthRecipe

MS = 1_000_000


def test_errors_by_hand() -> None:
    truth = {"a": Stamped(1, "a", 100 * MS, (130 * MS, 140 * MS, 160 * MS)), "b": Stamped(2, "b", 0, (1,))}
    reported = {"a": Reported(ttft=33.0, tpot=15.5, gaps=(9.0, 20.0)), "b": Reported(1, 1, ()), "c": Reported(1, 1, ())}
    ttft, tpot, gaps = errors_ms(reported, truth)
    assert (ttft, tpot, gaps) == (pytest.approx([3.0]), pytest.approx([0.5]), pytest.approx([1.0, 0.0]))


def test_every_request_is_found_in_the_servers_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ProcessDriver() as driver, echo_server(1.0, 2.0, log=log) as url:
        job = Job(url=url, concurrency=4, until="requests", requests=12, input=LengthRecipe(value=64), output=LengthRecipe(value=8))
        load = driver.drive(job)
    assert {row.outcome for row in load.rows} == {"completed"}
    answers = {answer.key: answer for answer in read_log(log)}
    reported = reported_by(load.rows, job)
    assert len(reported) == len(answers) == 12
    assert reported.keys() == answers.keys()
    for answer in answers.values():
        assert len(answer.stamps) == 8
        assert answer.received <= answer.stamps[0]
    assert len(errors_ms(reported, answers)[2]) == 12 * 7


def test_calibration_tells_levels_and_a_ceiling() -> None:
    found = calibrate(streams=(4,), tokens=8, token_ms=2.0, seconds=0.1)
    assert [level.streams for level in found.levels] == [4]
    assert found.levels[0].chunks >= 32
    assert found.ceiling_chunks_s > found.levels[0].chunks_per_s
    assert found.fit == (found.note == "")
