"""The steadiness test: real cold launches, settling and noisy series, changes inside; with error rates by simulation."""

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from runner.loadgen import steadiness as s
from runner.loadgen.steadiness import Finished, Window

COLD = Path(__file__).parent.parent / "fixtures" / "loadgen" / "cold_cells.jsonl"


def windows(tpot: object, throughput: object | None = None) -> list[Window]:
    tpots = np.asarray(tpot, dtype=float)
    rates = 1 / tpots if throughput is None else np.asarray(throughput, dtype=float)
    return [Window(float(a), float(b)) for a, b in zip(tpots, rates, strict=True)]


def test_the_cold_launches_of_two_real_gpus_are_unproven() -> None:
    passes: dict[tuple[str, int], list[Window]] = defaultdict(list)
    for line in COLD.read_text().splitlines():
        cell = json.loads(line)
        if cell["seed"] != 999:
            passes[cell["tag"], cell["conc"]].append(Window(cell["tpot_p50"], cell["out_tps"]))
    assert len(passes) == 12
    for found in passes.values():
        assert len(found) < s.LEAST_WINDOWS
        assert s.verdict([], found, None) == "unproven"
        assert not s.warm(found)
    # base1 at 16 streams: TPOT stood still from the first pass (3.91 ms), while throughput rose by half.
    base = passes["base1", 16]
    assert base[-1].throughput / base[0].throughput > 1.5
    stretched = windows(np.full(5, base[0].tpot), np.interp(np.linspace(0, 2, 5), range(3), [w.throughput for w in base]))
    assert not s.warm(stretched), "TPOT alone would have called it steady"


def test_a_settling_series_is_not_warm_until_it_is_flat() -> None:
    decaying = 0.01 * (1 + 0.5 * np.exp(-np.arange(20) / 3))
    states = [s.warm(windows(decaying[:n])) for n in range(1, 21)]
    assert not any(states[:10])
    assert states[-1]


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_a_noisy_plateau_becomes_warm(noise: float) -> None:
    rng = np.random.default_rng(3)
    within_twelve = 0
    for _ in range(200):
        series = windows(0.01 * (1 + noise * rng.standard_normal(12)))
        within_twelve += any(s.warm(series[:n]) for n in range(5, 13))
    assert within_twelve >= 190


def test_a_single_slow_window_among_the_last_is_not_steady() -> None:
    assert not s.warm(windows([0.01, 0.0101, 0.01, 0.013, 0.01]))


def test_false_changes_are_rare_and_real_ones_are_seen() -> None:
    rng = np.random.default_rng(4)
    flat = sum(s.change_point(list(1 + 0.02 * rng.standard_normal(20)), 0.02) is not None for _ in range(500))
    assert flat <= 15  # 1 % asked, 3 % allowed for
    seen = 0
    for _ in range(200):
        series = 1 + 0.01 * rng.standard_normal(20)
        series[12:] += 0.05
        where = s.change_point(list(series), 0.02)
        seen += where is not None and abs(where - 12) <= 2
    assert seen >= 190


def test_a_change_smaller_than_the_tolerance_does_not_count() -> None:
    assert s.change_point([1.0] * 6 + [1.01] * 6, 0.02) is None
    assert s.change_point([1.0] * 6 + [1.05] * 6, 0.02) == 6
    assert s.change_point([1.0, 2.0, 2.0, 2.0], 0.02) is None


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 18])
@pytest.mark.parametrize("t", [0.0, 0.5, 2.0, 7.0])
def test_students_tail(t: float, df: int) -> None:
    assert s.t_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-9)


def test_verdicts() -> None:
    flat, step = windows([0.01] * 6), windows([0.01] * 4 + [0.012] * 4)
    assert s.verdict([], flat, None) == "steady"
    assert s.verdict([], step, None) == "changed"
    assert s.verdict(flat, flat, False) == "cold"
    assert s.verdict(flat[:3], flat, False) == "steady"  # the budget ended early, the measured window proves itself
    assert s.verdict(flat, flat[:2], True) == "steady"
    assert s.verdict(flat, windows([0.012, 0.012]), True) == "changed"
    assert s.verdict(flat[:3], flat[:1], True) == "unproven"
    assert s.verdict(flat, flat[:4], None) == "unproven"


def test_rounds_hold_whole_rounds_in_order_of_their_end() -> None:
    done = [Finished(first=k + 0.1, last=k + 1.0 + 0.01 * j, tokens=10) for k in range(3) for j in range(2)]
    found = s.rounds([*reversed(done), Finished(3.1, 4.0, 10)], 2, start=0.0)
    assert [w.throughput for w in found] == pytest.approx([20 / 1.01, 20.0, 20.0])
    assert [w.tpot for w in found] == pytest.approx([0.905 / 9] * 3)
    assert math.isnan(s.rounds([Finished(1.0, 1.0, 1)], 1, 0.0)[0].tpot)


def test_slices_of_an_open_loop() -> None:
    done = [Finished(first=at - 0.5, last=float(at), tokens=6) for at in range(1, 11)]
    found = s.slices(done, 5, 0.5, 10.5)
    assert [w.throughput for w in found] == pytest.approx([6.0] * 5)
    assert [w.tpot for w in found] == pytest.approx([0.1] * 5)
