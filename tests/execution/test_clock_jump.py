"""A clock that is set back by a day while a server runs: durations, GPU seconds and the gap to the next launch stay true."""

import time
from pathlib import Path

import pytest

from runner.execution.inline import InlineExecutor
from tests.execution.launching import launch_job, node_order

DAY = 86400.0


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_jump_in_a_launch_is_no_gpu_time(jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    executor = InlineExecutor()
    try:
        (node,) = executor.open(node_order(tmp_path / "lock"), None)
        records = []
        previous: float | None = None
        for number in range(2):
            job = launch_job(tmp_path, f"b{number:02d}-p00-baseline").model_copy(update={"previous_end": previous})
            for event in node.launch(job):
                if number == 0:
                    monkeypatch.setattr(time, "time", lambda: real() + jump)
                if event.record is not None:
                    records.append(event.record)
                    previous = event.record.ended_at
    finally:
        executor.close()
    for record in records:
        assert record.outcome == "ok"
        assert 0 < record.ended_at - record.started_at < 600
        assert record.gpu_seconds == pytest.approx(record.ended_at - record.started_at)
    assert records[1].started_at >= records[0].ended_at
    assert records[1].idle_gap_s is not None and records[1].idle_gap_s < 600
