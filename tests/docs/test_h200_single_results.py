"""The committed study of one H200: today's code judges its records as its decision says, and its page quotes nothing that is not in them."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from runner.analysis.noise import noise_floor
from runner.records import words
from runner.records.decision import Decision
from runner.records.schema import LaunchRecord
from tests.docs.published import Published, figures_beyond, own_cost, page_of

STUDY = Published(Path(__file__).resolve().parents[2] / "experiments" / "h200_single" / "results", "single-x1")
PAGE = page_of(STUDY.folder)
EAGER, SLOW, CHUNK, PAGE64 = "cuda_graph_batch_sizes=none", "overlap_schedule=off", "chunked_prefill_size=2048", "page_size=64"
TPOT, TTFT, RATE = "tpot_p50_ms", "ttft_p50_ms", "output_tok_s"
DECODE = ("decode_c1", "decode_c16", "decode_c64")


def test_todays_code_grades_and_judges_the_records_as_the_decision_says(tmp_path: Path) -> None:
    STUDY.assert_judged_the_same(tmp_path)


def effect(arm: str, phase: str) -> str:
    found = STUDY.hypothesis(arm, phase)
    return f"{found['verdict']} ({found['effect_pct']:.2f} %, {found['low_pct']:.2f} to {found['high_pct']:+.2f})"


def worse(arm: str, phase: str) -> str:
    found = STUDY.hypothesis(arm, phase)
    return f"{-found['effect_pct']:.2f} % worse ({-found['high_pct']:.2f} to {-found['low_pct']:.2f})"


def phases() -> list[dict[str, Any]]:
    return [found for record in STUDY.measured for found in record["phases"]]


def first_start(arm: str) -> float:
    return float(next(record["stages"]["start"] for record in STUDY.launches if record["arm"] == arm))


def of_the_noise_floor() -> list[str]:
    """The A/A study's passages; its answer is made anew from its launches."""
    records = [LaunchRecord.model_validate(record) for record in STUDY.lines("noise.jsonl")]
    decision = Decision.model_validate(json.loads((STUDY.folder / "noise_decision.json").read_text()))
    floor = noise_floor(records)
    for row in decision.spread:
        entry = floor.entry(row.phase, row.metric)
        assert entry is not None and row.sd_pct == pytest.approx(entry.between_pct, rel=1e-6) and entry.launches == row.launches == 8
    spread = {(row.metric, row.phase): row for row in decision.spread}
    names = ((TPOT, "TPOT p50"), (TTFT, "TTFT p50"), (RATE, "output tok/s"))
    cells = {metric: [f"{words.number(spread[metric, phase].sd_pct, 2)} %" for phase in (*DECODE, "prefill")] for metric, _ in names}
    seen = [words.number(spread[TPOT, phase].resolves_pct[3], 2) for phase in ("decode_c16", "decode_c64")]
    smoke, *launches = (found.metrics[TPOT] for record in records if (found := record.phase("decode_c16")) is not None)
    first, second = ([f"{value:.3f}" for value in part] for part in (launches[:4], launches[4:]))
    (warning,) = decision.warnings
    assert warning.startswith(f"decode_c16 {TPOT}: blocks lie {words.number(spread[TPOT, 'decode_c16'].blocks_pct, 2)} % apart")
    assert [record.purpose for record in records] == ["smoke"] + 8 * ["noise"] and {record.block for record in records} == {0, 1}
    return [
        *(f"| {name} | {' | '.join(cells[metric])} |" for metric, name in names),
        f"eight of the baseline in two blocks, {decision.gpu_minutes:.0f} GPU minutes",
        f"an effect on TPOT of {seen[0]} % at 16 streams and of {seen[1]} % at 64",
        f"at 16 streams: {', '.join(first[:3])} and {first[3]} ms in the first block, {', '.join(second[:3])} and {second[3]} in the second; the "
        f"unmeasured launch, which had the first block's prompts, {smoke:.3f}",
        f"told as that ({words.number(spread[TPOT, 'decode_c16'].blocks_pct, 2)} %)",
    ]


def quoted() -> list[str]:
    """Passages of the page, each made from the records."""
    launches, smoke = STUDY.launches, STUDY.launches[0]
    means = {(arm, phase): STUDY.mean(arm, phase, TPOT) for arm in ("baseline", EAGER) for phase in DECODE}
    counts = {arm: sum(record["arm"] == arm for record in STUDY.measured) for arm in {record["arm"] for record in launches}}
    ttft = [STUDY.spread("baseline", phase, TTFT) for phase in DECODE]
    rates = [STUDY.spread("baseline", phase, RATE) for phase in (*DECODE, "prefill")]
    capped = sum("sw_power_cap" in found["telemetry"]["throttle_reasons"] for found in phases())
    unsteady = [found for found in phases() if found["steadiness"] != "steady"]
    starts = [record["stages"]["start"] for record in STUDY.measured if record["arm"] == "baseline"]
    own = sorted(own_cost(record) for record in STUDY.measured if record["arm"] != EAGER)
    whole = [record["ended_at"] - record["started_at"] for record in STUDY.measured]
    windows = [sum(found["window_s"] for found in record["phases"]) for record in STUDY.measured]
    loads = [sum(found["window_s"] + found["warmup_s"] for found in record["phases"]) for record in STUDY.measured]
    drills = {item["class"]: item for item in json.loads((STUDY.folder / "drills.json").read_text())}
    assert all(
        item["as_it_must"] and not item["foreign_after"] and set(item["gpu_bytes_after"].values()) == {0} for item in drills.values()
    )
    assert "python3" in drills["port_in_use"]["line"] and "exit code -9" in drills["scheduler_died"]["line"]
    c64, c16 = STUDY.of(CHUNK, "decode_c64", TPOT), STUDY.of(PAGE64, "decode_c16", RATE)
    prefill = STUDY.of(CHUNK, "prefill", TTFT)
    page1 = STUDY.hypothesis(PAGE64, "decode_c1")
    between = statistics.median(record["idle_gap_s"] for record in launches if record["idle_gap_s"] is not None)
    return [
        f"{counts['baseline']} launches of the baseline and of each arm that serves",
        f"{STUDY.decision['gpu_minutes']:.0f} GPU minutes",
        f"TPOT p50 {means[EAGER, 'decode_c1']:.2f} ms against {means['baseline', 'decode_c1']:.2f} ms at one stream, "
        f"{means[EAGER, 'decode_c16']:.2f} against {means['baseline', 'decode_c16']:.2f} at 16, "
        f"{means[EAGER, 'decode_c64']:.2f} against {means['baseline', 'decode_c64']:.2f} at 64",
        f"TTFT of the prefill phase {effect(EAGER, 'prefill')}",
        f"TPOT p50 at 16 streams {worse(SLOW, 'decode_c16')}, at 64 streams {worse(SLOW, 'decode_c64')}",
        f"at one stream {-STUDY.hypothesis(SLOW, 'decode_c1')['effect_pct']:.2f} % worse in the mean and "
        f"{STUDY.hypothesis(SLOW, 'decode_c1')['verdict']}",
        f"TTFT of the prefill phase {effect(SLOW, 'prefill')}",
        f"TPOT p50 at one stream {effect(CHUNK, 'decode_c1')}",
        f"TTFT of the prefill phase {-STUDY.hypothesis(CHUNK, 'prefill')['effect_pct']:.2f} % worse in the mean",
        f"({prefill[0]:.1f}, {prefill[1]:.1f} and {prefill[2]:.1f} ms)",
        f"by {-page1['effect_pct']:.2f} % of TPOT p50 at one stream ({-page1['high_pct']:.2f} to {-page1['low_pct']:.2f})",
        f"from a scheduler, {first_start('single_batch_overlap=on'):.0f} s after the start",
        f"while the pool was allocated, {first_start('mem_fraction_static=0.9999'):.0f} s after the start",
        f"taker's command line, {drills['port_in_use']['seconds']:.1f} s after its beginning",
        f"TPOT p50 {STUDY.spread('baseline', 'decode_c1', TPOT):.2f} % at one stream, "
        f"{STUDY.spread('baseline', 'decode_c16', TPOT):.2f} % at 16, {STUDY.spread('baseline', 'decode_c64', TPOT):.2f} % at 64",
        f"phases {min(ttft):.0f} to {max(ttft):.0f} %, of the prefill phase {STUDY.spread('baseline', 'prefill', TTFT):.2f} %; "
        f"throughput {min(rates):.2f} to {max(rates):.2f} %",
        f"TPOT at one stream varies by {STUDY.spread(EAGER, 'decode_c1', TPOT):.2f} %, without the overlap schedule by "
        f"{STUDY.spread(SLOW, 'decode_c1', TPOT):.2f} %",
        f"Up to {max(found['telemetry']['power_w_mean'] for found in phases()):.0f} W of the 700 W limit and "
        f"{max(found['telemetry']['temperature_c_max'] for found in phases()):.0f} C",
        f"`sw_power_cap` in {capped} of {len(phases())} phases while the SM clock's median never fell below "
        f"{min(found['telemetry']['sm_clock_mhz_p50'] for found in phases()):.0f} MHz",
        f"steadier here ({STUDY.spread('baseline', 'decode_c1', TPOT):.2f} %)",
        f"took {smoke['stages']['start']:.0f} s to start ({smoke['stages']['start_graphs']:.0f} s of it capturing graphs), later ones of the "
        f"baseline {min(starts):.0f} to {max(starts):.0f} s",
        f"chunk 2048 had {c64[0]:.2f} ms at 64 streams, later {c64[1]:.2f} and {c64[2]:.2f}",
        f"page size 64 had {c16[0]:,.0f} tok/s at 16 streams, later {c16[1]:,.0f} and {c16[2]:,.0f}",
        f"({STUDY.mean(PAGE64, 'prefill', TTFT):.1f} ms against {STUDY.mean('baseline', 'prefill', TTFT):.1f} in the mean)",
        f"({STUDY.mean(PAGE64, 'prefill', TPOT):.2f} against {STUDY.mean('baseline', 'prefill', TPOT):.2f} ms)",
        f"start {STUDY.stage('start'):.1f} s and stop {STUDY.stage('stop'):.1f} s are the engine's; describe {STUDY.stage('describe'):.2f} s, "
        f"output fingerprint {STUDY.stage('fingerprint'):.2f} s, evidence {STUDY.stage('evidence'):.2f} s, between two launches {between:.2f} s",
        f"a launch takes {statistics.median(own_cost(record) for record in STUDY.measured):.2f} s in the median; the longest of arms with decode "
        f"graphs {own[-1]:.2f} s",
        f"up to {max(own_cost(record) for record in STUDY.measured):.2f} s",
        f"{100 * statistics.median(part / total for part, total in zip(windows, whole, strict=True)):.0f} % of a launch, windows and warm-up "
        f"{100 * statistics.median(part / total for part, total in zip(loads, whole, strict=True)):.0f} %",
        f"{len(unsteady)} of {len(phases())} phases unproven, changed or cold, {sum(item['phase'] == 'decode_c64' for item in unsteady)} of them "
        "at 64 streams",
    ]


@pytest.mark.parametrize("passage", [*quoted(), *of_the_noise_floor()])
def test_the_page_quotes_the_records(passage: str) -> None:
    assert passage in PAGE


def test_no_other_figure_with_a_unit_stands_on_the_page() -> None:
    """What is left after the passages above are settings, what the page says of another study, and what the first judgement had said."""
    figures = figures_beyond(PAGE, [*quoted(), *of_the_noise_floor()], "%|ms|us|s|tok/s|GB/s|W|C|MHz|MiB")
    settings, elsewhere, first_judgement, seen_at_exit = {"4 s", "1 %"}, {"5.2 %"}, {"0.6 %"}, {"32,126 MiB"}
    assert figures <= settings | elsewhere | first_judgement | seen_at_exit, figures
    assert all(STUDY.hypothesis(EAGER, phase)["high_pct"] < -50 for phase in DECODE)
    assert {(arm["name"], arm["status"]) for arm in STUDY.decision["arms"]} >= {
        ("single_batch_overlap=on", "REJECTED"),
        ("mem_fraction_static=0.9999", "FAILED"),
    }
    assert STUDY.decision["complete"] is False
