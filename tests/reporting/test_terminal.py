"""Table and progress at the terminal: fits, says SIMULATED, colours only where somebody looks."""

import io
import re

import pytest
from rich.console import Console

from runner.reporting.progress import Progress
from runner.reporting.terminal import print_decision
from tests.reporting.synthetic import Synthetic, as_nightly, make


@pytest.fixture(scope="module")
def synthetic() -> Synthetic:
    return make()


def shown(synthetic: Synthetic, width: int, terminal: bool = False) -> str:
    out = io.StringIO()
    print_decision(synthetic.decision, synthetic.plan, console=Console(file=out, width=width, force_terminal=terminal, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 132, 200])
def test_fits_the_width_and_holds_every_arm(synthetic: Synthetic, width: int) -> None:
    text = shown(synthetic, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for arm in synthetic.decision.arms:
        assert arm.name in text
    assert text.count("+6.2 [+5.4, +7.0]") == 3
    for word in ("UNRESOLVED", "MIXED", "INERT", "BROKEN", "INVALID", "FAILED", "contradicted", "observed"):
        assert word in text


def test_a_narrow_terminal_loses_no_figure(synthetic: Synthetic) -> None:
    text = shown(synthetic, 40)
    assert text.count("+6.2 [+5.4, +7.0]") == 3
    assert text.count("n=") == shown(synthetic, 80).count("n=")


def test_simulated_is_in_the_first_line_and_the_table_title(synthetic: Synthetic) -> None:
    lines = shown(synthetic, 120).splitlines()
    assert lines[0].startswith("SIMULATED")
    assert any("SIMULATED" in line and synthetic.decision.study in line for line in lines[1:])
    assert "SIMULATED" not in shown(make(simulated=False), 120)


@pytest.mark.parametrize("width", [80, 240])
def test_a_night_is_shown_as_a_night(synthetic: Synthetic, width: int) -> None:
    text = shown(as_nightly(synthetic), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "Regression: driver 580 -> 590. fusion=on" in " ".join(text.split())
    assert "-5.0 [-6.0, -4.0]" in text and "REGRESSION" in text and "quiet" in text
    assert "+6.2 [+5.4, +7.0]" not in text, "a night does not compare arms with each other"
    assert "no primary hypothesis" not in text and text.count("INVALID") == 3, "only the arm whose phases were not valid"
    assert "launched again the same night before this was said" in text
    assert "action=accept study.name=" in " ".join(text.split())


def test_the_first_nights_and_an_unfinished_one_are_no_invalid_arms(synthetic: Synthetic) -> None:
    for outcome, word in (("learning", "learning"), ("unfinished", "not judged")):
        text = shown(as_nightly(synthetic, outcome), 100)
        assert word in text and "no primary hypothesis" not in text


def test_colours_only_on_a_terminal(synthetic: Synthetic) -> None:
    assert "\x1b[" not in shown(synthetic, 100)
    assert "\x1b[" in shown(synthetic, 100, terminal=True)


def test_exclusions_are_counted_with_reasons(synthetic: Synthetic) -> None:
    text = " ".join(shown(synthetic, 200).split())
    assert "3 x REJECTED at rule: mscclpp_max_bytes: 3MB is not a power of two" in text
    assert "1 x REJECTED at resolve: ValueError: flashinfer" in text
    assert "15 cells, 4 rejected, 1 duplicate, 10 arms" in text


def test_names_with_brackets_are_not_markup() -> None:
    synthetic = make(arms=2)
    odd = synthetic.decision.model_copy(update={"question": "is [red]x[/red] faster?"})
    assert "is [red]x[/red] faster?" in shown(Synthetic(synthetic.plan, [], odd), 100)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(clock: Clock, terminal: bool = False, quiet: bool = False, guess: float | None = None) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=terminal, highlight=False)
    return Progress(quiet=quiet, console=console, clock=clock, seconds_per_launch=guess), out


def test_quiet_form_is_one_plain_line_an_event() -> None:
    clock = Clock()
    show, out = progress(clock)
    with show:
        show.study("s", 4, simulated=True)
        show.launch("l1", "mscclpp=on")
        show.stage("l1", "weights")
        clock.now = 100
        show.phase("l1", "decode_c1", "TPOT 12 ms")
        show.finished("l1", "failed", "nccl_timeout: no answer")
        show.note("block 1: 3 arms open")
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("SIMULATED")
    assert lines[2:] == [
        "launch 1 of 4: mscclpp=on",
        "  mscclpp=on: decode_c1: TPOT 12 ms",
        "  mscclpp=on: failed after 2 min: nccl_timeout: no answer",
        "block 1: 3 arms open",
    ]
    assert "\x1b" not in out.getvalue()


def test_long_lines_are_not_broken_in_a_log() -> None:
    show, out = progress(Clock())
    show.note("x" * 300)
    assert out.getvalue() == "x" * 300 + "\n"


def test_time_left_uses_the_guess_then_the_median_of_good_launches() -> None:
    clock = Clock()
    show, _ = progress(clock, guess=60)
    show.study("s", 5)
    assert show.seconds_left() == 300
    for number, seconds in enumerate((10, 500, 20)):
        show.launch(f"l{number}", "a")
        clock.now += seconds
        show.finished(f"l{number}", "failed" if seconds == 500 else "ok")
    assert show.seconds_left() == pytest.approx(2 * 20)
    show.launch("l3", "a")
    clock.now += 5
    assert show.seconds_left() == pytest.approx(15 + 20)


def test_time_left_counts_nodes_that_work_side_by_side() -> None:
    clock = Clock()
    show, _ = progress(clock, guess=100)
    show.study("s", 6)
    show.launch("l1", "a", node="n1")
    show.launch("l2", "b", node="n2")
    assert show.seconds_left() == pytest.approx(100 + 4 * 100 / 2)


def test_resumed_study_counts_on() -> None:
    show, out = progress(Clock())
    show.study("s", 10, done=6)
    show.launch("l", "a")
    assert "6 of them kept" in out.getvalue()
    assert "launch 7 of 10: a" in out.getvalue()


def test_live_line_shows_stage_and_phase_and_ends() -> None:
    show, out = progress(Clock(), terminal=True)
    assert show.live
    with show:
        show.study("s", 3, simulated=True)
        show.launch("l", "mscclpp=on")
        show.stage("l", "weights")
        assert "SIMULATED launch 1/3 mscclpp=on | weights" in show._state()
        show.phase("l", "decode_c16")
        assert "decode_c16" in show._state()
    show.close()
    assert re.search(r"\x1b\[\?25h", out.getvalue()), "the cursor comes back"


def test_quiet_wins_over_a_terminal() -> None:
    show, _ = progress(Clock(), terminal=True, quiet=True)
    assert not show.live
