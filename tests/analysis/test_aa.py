"""An A/A study answers its own question everywhere it is shown: how far launches of one configuration lie apart."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from runner.analysis.aa import spreads
from runner.analysis.judge import judge
from runner.records import words
from runner.records.decision import Decision
from runner.records.plan import Plan
from runner.records.schema import Failure, LaunchRecord
from runner.reporting.html import write_report
from runner.reporting.terminal import print_decision
from runner.spec.protocol import Protocol
from runner.tracking.note import study_note
from tests.analysis.example import PHASES, TPOT, launch, measured, plan
from tests.reporting.synthetic import Synthetic, write

NAMES = ("baseline", "A/A 1", "A/A 2", "A/A 3")


def aa_plan(**extra: object) -> Plan:
    return plan({name: {} for name in NAMES}, phases=PHASES, hypotheses=(), simulated=False, **extra)


def launches(noise: float = 0.01, blocks: int = 3, seed: int = 5) -> list[LaunchRecord]:
    return measured(np.random.default_rng(seed), NAMES, blocks, noise=noise, phases=PHASES, purpose="noise")


def decision(records: list[LaunchRecord], complete: bool = True) -> Decision:
    return judge(aa_plan(), records, Protocol(), complete=complete)


def test_the_answer_is_the_spread_and_what_it_lets_a_study_find() -> None:
    found = decision(launches())
    by_phase = {row.phase: row for row in found.spread}
    assert [row.metric for row in found.spread] == [TPOT, TPOT] and set(by_phase) == set(PHASES)
    for row in found.spread:
        assert row.launches == 12
        assert row.low_pct is not None and row.high_pct is not None and row.low_pct < row.sd_pct < row.high_pct
        assert row.sd_pct == pytest.approx(1.0, rel=0.6)
        assert row.mean == pytest.approx(10.0, rel=0.02)
    sentence = found.recommendation.sentence
    quiet, loud = sorted(found.spread, key=lambda row: row.sd_pct)
    assert (
        "TPOT p50" in sentence
        and "12 launches" in sentence
        and f"{words.number(quiet.sd_pct, 2)} to {words.number(loud.sd_pct, 2)} %" in sentence
    )
    assert (
        f"of {words.number(quiet.resolves_pct[3], 2)} % in {quiet.phase} and of {words.number(loud.resolves_pct[3], 2)} % in {loud.phase}"
        in sentence
    )
    assert found.recommendation.arm is None and "use this floor" in found.recommendation.next_experiment
    assert not any("noise floor" in warning for warning in found.warnings), "it is this study that measures it"


def test_the_interval_of_the_spread_holds_as_often_as_it_says() -> None:
    rows = [row for seed in range(300) for row in spreads(aa_plan(), launches(0.01, 2, seed), Protocol())]
    held = np.mean([(row.low_pct or 0) <= 1.0 <= (row.high_pct or 0) for row in rows])
    assert 0.86 <= held <= 0.94


def test_two_speeds_and_drift_are_warned_of() -> None:
    rng = np.random.default_rng(2)
    steps = measured(rng, NAMES, 3, noise=0.001, effects={"A/A 2": 0.05, "A/A 3": 0.05}, purpose="noise")
    found = judge(aa_plan(), steps, Protocol())
    assert any(re.match(r"decode_c1 tpot_p50_ms: two speeds (4\.9|5\.[01]) %", warning) for warning in found.warnings), found.warnings
    assert "two speeds of decode_c1" in found.recommendation.next_experiment
    drifting = [
        record.model_copy(update={"phases": launch("a", 0, metrics={"decode_c1": {TPOT: 10 * 1.01**number * value}}).phases})
        for number, (record, value) in enumerate(zip(steps, np.exp(0.001 * rng.standard_normal(len(steps))), strict=True))
    ]
    assert any("drifts by +1.0" in warning or "drifts by +0.9" in warning for warning in judge(aa_plan(), drifting, Protocol()).warnings)


def test_blocks_that_differ_are_no_noise_of_launches_and_no_two_speeds() -> None:
    """Each block has its own prompts. One H200, 16 streams: 6.186, 6.191, 6.180, 6.187 ms in one block, 6.116, 6.108, 6.121, 6.106 in
    the next: that is no node of two speeds, and a study, which compares inside blocks, does not feel it."""
    values = [6.186, 6.191, 6.180, 6.187, 6.116, 6.108, 6.121, 6.106]
    records = [
        launch(NAMES[number % 4], number // 4, number % 4, metrics={"decode_c1": {TPOT: value}}, purpose="noise")
        for number, value in enumerate(values)
    ]
    found = judge(aa_plan(), records, Protocol())
    (row,) = found.spread
    assert row.sd_pct < 0.12 and row.modes == 1 and row.blocks_pct == pytest.approx(0.83, abs=0.08) and row.blocks_p < 0.001
    (warning,) = found.warnings
    assert warning.startswith("decode_c1 tpot_p50_ms: blocks lie 0.84 % apart")
    assert "use this floor" in found.recommendation.next_experiment
    held = [entry for seed in range(200) if (entry := spreads(aa_plan(), launches(0.01, 3, seed), Protocol())[0]).blocks_p < 0.01]
    assert len(held) <= 7, "one in a hundred without a block effect"


def test_a_study_under_way_and_one_without_launches() -> None:
    few = decision(launches(blocks=1)[:2], complete=False)
    assert few.recommendation.sentence == "Too few launches (2) to tell how far launches of one configuration lie apart."
    assert few.recommendation.next_experiment.startswith("Resume")
    failed = [
        launch("baseline", 0, outcome="failed", failure=Failure(kind="out_of_memory", stage="start", confidence=1.0), purpose="noise")
    ]
    none = decision(failed)
    assert none.spread == () and none.recommendation.sentence.startswith("No recommendation: the baseline was not measured")


def test_a_comparison_is_no_aa_study() -> None:
    compared = plan({"baseline": {"f": "off"}, "f=on": {"f": "on"}})
    records = measured(np.random.default_rng(1), ["baseline", "f=on"], 3)
    assert judge(compared, records, Protocol()).spread == ()


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_figure_whole(width: int) -> None:
    found = decision(launches())
    out = io.StringIO()
    print_decision(found, aa_plan(), console=Console(file=out, width=width, highlight=False))
    text = out.getvalue()
    assert "…" not in text and max(len(line.rstrip()) for line in text.splitlines()) <= width
    for row in found.spread:
        assert f"{words.number(row.low_pct, 2)} to" in text and f"{words.number(row.resolves_pct[12], 2)}" in text
    assert "12 launches of the baseline" in text and "not judged" not in text


def test_page_and_note_show_it(tmp_path: Path) -> None:
    found = decision(launches())
    study = write(tmp_path, Synthetic(aa_plan(), launches(), found))
    page = write_report(study, found, aa_plan(), launches()).read_text()
    assert 'id="spread"' in page and 'id="effects"' not in page and 'href="#effects"' not in page
    assert "No launch has values" not in page, "launches are drawn in time order"
    note = study_note(aa_plan(), found, 12)
    for row in found.spread:
        assert f"{words.number(row.resolves_pct[3], 2)}" in page and f"{words.number(row.resolves_pct[3], 2)}" in note
    assert "| metric | phase |" in note
