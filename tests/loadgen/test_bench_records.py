"""`make bench-client` is cut, goes on and says what it lacks: its records and its table, without measuring anything."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.bench.client_bench import LEVELS, Result, Step, plan
from tests.bench.client_records import Records
from tests.bench.client_table import BARE, FLOOR, OURS, SGLANG, write_table

C64 = "closed loop, 64 streams"
STEPS = [Step(client, C64, repeat) for repeat in range(2) for client in (BARE, OURS)]


def head(**settings: str) -> dict[str, Any]:
    return {"machine": {"cores": "2"}, "versions": {"uvloop": "1"}, "settings": {"steps": str(len(STEPS)), **settings}}


def row(step: Step, ttft: float = 0.5, busy: float = 0.02) -> dict[str, Any]:
    numbers = {"ttft_p99": 2.0, "tpot_p50": 0.01, "tpot_p99": 0.02, "gap_p50": 0.1, "gap_p99": 1.0}
    result = Result(
        client=step.client, level=step.level, requests=8, chunks=512, chunks_per_s=6400.0, ttft_p50=ttft, cpu_s_per_million=7.0,
        lag_p99=0.1, rate_error=None, **numbers,
    )  # fmt: skip
    return {**asdict(step), "busy_before": busy, "at": "2026-01-01 00:00:00", "result": asdict(result)}


def table(folder: Path, records: Records) -> str:
    write_table(folder, records.head(), records.rows())
    return (folder / "README.md").read_text(encoding="utf-8")


def test_a_cut_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.jsonl")
    assert records.open(head(), STEPS, fresh=False) == STEPS
    records.append(row(STEPS[0]))
    with open(tmp_path / "records.jsonl", "a", encoding="utf-8") as file:
        file.write('{"client": "this cli')
    assert records.open(head(), STEPS, fresh=False) == STEPS[1:]
    assert "PARTIAL: 1 of 4 steps" in table(tmp_path, records)
    for step in STEPS[1:]:
        records.append(row(step))
    assert records.open(head(), STEPS, fresh=False) == []
    assert "PARTIAL" not in table(tmp_path, records)
    assert records.open(head(), STEPS, fresh=True) == STEPS


def test_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.jsonl")
    records.open(head(), STEPS, fresh=False)
    records.append(row(STEPS[0]))
    assert records.open(head(seconds="3"), STEPS, fresh=False) == STEPS
    assert records.rows() == []


def test_a_failed_step_is_shown_and_taken_again(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.jsonl")
    records.open(head(), STEPS, fresh=False)
    records.append({**asdict(STEPS[0]), "busy_before": 0.0, "at": "2026-01-01 00:00:00", "failed": "OSError: gone"})
    text = table(tmp_path, records)
    assert "OSError: gone" in text
    assert "PARTIAL: 0 of 4" in text
    assert records.open(head(), STEPS, fresh=False) == STEPS


@pytest.mark.parametrize(("ttft", "word"), [(0.9, "met"), (1.1, "**missed**")])
def test_a_goal_is_judged_by_the_median_of_the_repeats(tmp_path: Path, ttft: float, word: str) -> None:
    records = Records(tmp_path / "records.jsonl")
    records.open(head(), STEPS, fresh=False)
    for repeat, value in enumerate((0.1, ttft, 7.0)):
        records.append(row(Step(OURS, C64, repeat), ttft=value))
    line = next(line for line in table(tmp_path, records).splitlines() if "TTFT error p50 at 64" in line)
    assert line.rstrip(" |").endswith(word)


@pytest.mark.parametrize(("busy", "said"), [(0.02, False), (0.4, True)])
def test_a_busy_machine_is_said(tmp_path: Path, busy: float, said: bool) -> None:
    records = Records(tmp_path / "records.jsonl")
    records.open(head(), STEPS, fresh=False)
    records.append(row(STEPS[1], busy=busy))
    assert ("Not a quiet machine" in table(tmp_path, records)) == said


def test_the_plan_takes_every_level_before_it_repeats_one() -> None:
    steps = plan(short=False, repeats=2, with_sglang=True)
    half = steps[: len(steps) // 2]
    assert {step.level for step in half} == {"start", *(level.name for level in LEVELS)}
    assert {step.repeat for step in half} == {0}
    assert {step.client for step in half if step.level == C64} == {BARE, FLOOR, OURS, SGLANG}
    assert not any(step.client == SGLANG for step in plan(short=False, repeats=1, with_sglang=False))
