"""Nightly watch: alarms as rarely as promised, and finds what it must, by simulation of the very function that judges."""

import numpy as np
import pytest

from runner.analysis.nightly import baseline_of, judge_night, what_changed
from runner.records.night import Night, Quantity, key
from runner.spec.protocol import Margins

QUANTITIES = [Quantity(arm=arm, phase="decode_c16", metric="tpot_p50_ms") for arm in ("baseline", "mscclpp", "fusion", "sbo")]


def night(rng: np.random.Generator, index: int, launch_sd: float, night_sd: float, shift: float = 0.0, launches: int = 2) -> Night:
    """One night of four arms; `shift` (log scale) moves the arm `fusion` alone."""
    values = {}
    level = rng.normal(0, night_sd)
    for quantity in QUANTITIES:
        moved = shift if quantity.arm == "fusion" else 0.0
        values[key(quantity)] = tuple(20.0 * np.exp(level + moved + rng.normal(0, launch_sd, launches)))
    return Night(study=f"night-{index}", at=float(index), values=values, identity={"engine": "1"})


def watch(rng: np.random.Generator, quiet: int, launch_sd: float, night_sd: float, shifts: tuple[float, ...] = ()) -> list[str]:
    """Outcomes night by night, history kept as the product keeps it."""
    history: list[Night] = []
    outcomes = []
    for index in range(quiet + len(shifts)):
        tonight = night(rng, index, launch_sd, night_sd, shifts[index - quiet] if index >= quiet else 0.0)
        verdict = judge_night(tonight, history, QUANTITIES, Margins())
        outcomes.append(verdict.outcome)
        history.append(tonight.model_copy(update={"outcome": verdict.outcome}))
    return outcomes


@pytest.mark.parametrize(("launch_sd", "night_sd"), [(0.003, 0.0), (0.005, 0.002), (0.01, 0.005)])
def test_at_most_one_false_alarm_in_sixty_quiet_nights(launch_sd: float, night_sd: float) -> None:
    rng = np.random.default_rng(20261)
    months = 6
    alarms = sum(outcome in ("regression", "improvement") for _ in range(months) for outcome in watch(rng, 63, launch_sd, night_sd))
    assert alarms / months <= 1.0, f"{alarms} alarms in {months} runs of 60 judged nights"


def test_three_percent_is_found_within_two_nights() -> None:
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(40):
        outcomes = watch(rng, 7, 0.005, 0.001, (0.03, 0.03))
        found += "regression" in outcomes[-2:]
    assert found >= 38, f"found {found} of 40"


def test_the_suspect_and_what_changed_are_named() -> None:
    rng = np.random.default_rng(1)
    history = [night(rng, index, 0.003, 0.0) for index in range(6)]
    tonight = night(rng, 6, 0.003, 0.0, shift=0.05).model_copy(update={"identity": {"engine": "2"}})
    verdict = judge_night(tonight, history, QUANTITIES, Margins())
    assert verdict.outcome == "regression" and verdict.suspects == ("fusion",)
    assert verdict.changed == {"engine": ("1", "2")}
    assert "fusion" in verdict.sentence and "engine 1 -> 2" in verdict.sentence
    worst = next(shift for shift in verdict.shifts if shift.quantity.arm == "fusion")
    assert worst.change_pct == pytest.approx(-4.9, abs=1.0) and worst.low_pct < worst.change_pct < worst.high_pct < 0


def test_a_faster_night_is_an_improvement_not_an_alarm() -> None:
    rng = np.random.default_rng(2)
    history = [night(rng, index, 0.003, 0.0) for index in range(6)]
    verdict = judge_night(night(rng, 6, 0.003, 0.0, shift=-0.05), history, QUANTITIES, Margins())
    assert verdict.outcome == "improvement" and verdict.suspects == ()


def test_the_first_nights_only_learn() -> None:
    rng = np.random.default_rng(3)
    assert watch(rng, 4, 0.003, 0.0) == ["learning", "learning", "learning", "learning"]


def test_a_significant_change_inside_the_margin_is_quiet() -> None:
    rng = np.random.default_rng(4)
    history = [night(rng, index, 0.0002, 0.0, launches=20) for index in range(7)]
    verdict = judge_night(night(rng, 7, 0.0002, 0.0, shift=0.008, launches=20), history, QUANTITIES, Margins())
    assert verdict.outcome == "quiet"


def test_a_slow_slide_does_not_carry_the_baseline_along() -> None:
    rng = np.random.default_rng(5)
    history: list[Night] = []
    for index in range(25):
        tonight = night(rng, index, 0.003, 0.0, shift=0.004 * max(0, index - 6))
        verdict = judge_night(tonight, history, QUANTITIES, Margins())
        history.append(tonight.model_copy(update={"outcome": verdict.outcome}))
    assert "regression" in [night.outcome for night in history]
    assert len(baseline_of(history)) == 7 and baseline_of(history)[-1].study == "night-6"


def test_accept_moves_the_baseline() -> None:
    rng = np.random.default_rng(6)
    history = [night(rng, index, 0.003, 0.0) for index in range(8)]
    moved = [night(rng, 8 + index, 0.003, 0.0, shift=0.05).model_copy(update={"accepted": index == 0}) for index in range(4)]
    assert [found.study for found in baseline_of(history + moved)] == ["night-8", "night-9", "night-10", "night-11"]
    assert judge_night(night(rng, 12, 0.003, 0.0, shift=0.05), history + moved, QUANTITIES, Margins()).outcome == "quiet"


def test_what_changed() -> None:
    assert what_changed({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == {"b": ("2", "3"), "c": ("-", "4")}
