"""What MLflow shall show, as a pure function of the records."""

import json
import math
from pathlib import Path

import pytest

from runner.records.paths import RootPaths, StudyPaths
from runner.records.words import INTERRUPTED, code_revision
from runner.tracking.note import LIMIT, study_note
from runner.tracking.saved_view import is_ours, view_tag
from runner.tracking.view import MAX_METRICS, RunView, is_stopped, rounded, study_view
from tests.reporting.synthetic import PHASES, Synthetic, as_nightly, make, write


@pytest.fixture(scope="module")
def synthetic() -> Synthetic:
    return make()


def view(synthetic: Synthetic, folder: Path, finished: bool = True, decided: bool = True) -> list[RunView]:
    study = StudyPaths(folder)
    return study_view(synthetic.plan, synthetic.launches, synthetic.decision if decided else None, study, finished, "4e1a9c2")


def arm(runs: list[RunView], name: str) -> RunView:
    return next(run for run in runs if run.kind == "arm" and run.name == name)


def names(run: RunView) -> set[str]:
    return {metric.name for metric in run.metrics}


def test_one_flat_run_an_arm_one_for_the_study_launches_below(synthetic: Synthetic, tmp_path: Path) -> None:
    runs = view(synthetic, tmp_path)
    assert [run.kind for run in runs].count("study") == 1
    assert sorted(run.name for run in runs if run.kind == "arm") == sorted(arm.name for arm in synthetic.plan.arms)
    assert len([run for run in runs if run.kind == "launch"]) == len(synthetic.launches)
    assert len({run.key for run in runs}) == len(runs)
    keys = {run.key for run in runs if run.kind == "arm"}
    assert all(run.parent in keys for run in runs if run.kind == "launch")
    assert all(run.parent is None for run in runs if run.kind != "launch")


def test_at_most_25_short_metrics_even_with_many_phases(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=3)
    many = {f"decode_c{2**n}": {"tpot_p50_ms": 1.0 + n, "output_tok_s": 5.0, "ttft_p50_ms": 9.0} for n in range(12)}
    arms = tuple(item.model_copy(update={"values": {**item.values, **many}}) for item in synthetic.decision.arms)
    wide = Synthetic(synthetic.plan, synthetic.launches, synthetic.decision.model_copy(update={"arms": arms}))
    for run in view(wide, tmp_path):
        assert len(names(run)) <= MAX_METRICS
        assert all(len(name) <= 30 for name in names(run))
    assert "effect_pct" in names(arm(view(wide, tmp_path), "fusion=on"))


def test_headline_metrics_and_curves_by_concurrency(synthetic: Synthetic, tmp_path: Path) -> None:
    run = arm(view(synthetic, tmp_path), "fusion=on")
    assert {"effect_pct", "c16/effect_pct", "c16/tpot_p50_ms", "c16/output_tok_s", "prefill_c4/ttft_p50_ms"} <= names(run)
    steps = [(metric.step, metric.value) for metric in run.metrics if metric.name == "curve/tpot_p50_ms"]
    assert [step for step, _ in steps] == [PHASES[phase] for phase in ("decode_c1", "decode_c16", "decode_c64")]
    assert [value for _, value in steps] == sorted(value for _, value in steps)


def test_no_curve_before_the_end(synthetic: Synthetic, tmp_path: Path) -> None:
    assert not any(name.startswith("curve/") for run in view(synthetic, tmp_path, finished=False) for name in names(run))


def test_arms_without_a_verdict_carry_no_metric_and_say_why(synthetic: Synthetic, tmp_path: Path) -> None:
    runs = view(synthetic, tmp_path)
    for result in synthetic.decision.arms:
        run = arm(runs, result.name)
        assert run.tags["status"] == result.status
        assert bool(run.metrics) == (result.verdict is not None or result.status == "BASELINE")
    failed = next(run for run in runs if run.tags["status"] == "FAILED" and run.kind == "arm")
    assert failed.status == "FAILED" and failed.tags["failure_class"] == "nccl_timeout"
    inert = next(run for run in runs if run.tags["status"] == "INERT")
    assert inert.tags["same_as"] == "mscclpp=on,mscclpp_max_bytes=1MB"


def test_baseline_is_zero_for_every_effect_so_that_compare_has_shared_metrics(synthetic: Synthetic, tmp_path: Path) -> None:
    runs = view(synthetic, tmp_path)
    effects = {metric.name: metric.value for metric in arm(runs, "baseline").metrics if "effect" in metric.name}
    assert set(effects) == {name for name in names(arm(runs, "fusion=on")) if "effect" in name}
    assert set(effects.values()) == {0.0}


def test_params_are_levels_plainly_named_and_never_the_arm(synthetic: Synthetic, tmp_path: Path) -> None:
    run = arm(view(synthetic, tmp_path), "fusion=on")
    assert run.params == {
        "mscclpp": "off",
        "fusion": "on",
        "overlap": "on",
        "mscclpp_max_bytes": "-",
        "engine_version": "SIMULATED 0.5.21",
        "model": "glm5_nvfp4",
        "node": "rtxpro6000_x8",
    }


def test_tags_of_an_arm(synthetic: Synthetic, tmp_path: Path) -> None:
    tags = arm(view(synthetic, tmp_path), "fusion=on").tags
    wanted = {"status": "MEASURED", "verdict": "WORSE", "evidence": "-", "engine_kind": "simulated", "simulated": "true"}
    assert wanted.items() <= tags.items()
    assert tags["study"] == synthetic.plan.study and tags["code_revision"] == "4e1a9c2"
    assert tags["patches"] == "skip_barrier:9f86d081884c"
    assert tags["attributed"].startswith("no")


def test_a_night_carries_its_verdict_in_tags_and_metrics(synthetic: Synthetic, tmp_path: Path) -> None:
    night = as_nightly(synthetic)
    runs = view(night, tmp_path)
    assert runs[0].tags["night"] == "regression" and runs[0].tags["night_changed"] == "driver: 580 -> 590"
    slower = arm(runs, "fusion=on")
    assert slower.tags["verdict"] == "REGRESSION"
    assert {metric.name: metric.value for metric in slower.metrics if "night" in metric.name} == {
        "night_pct": -5.0,
        "c1/night_tpot_p50_pct": -5.0,
    }
    assert all(len(names(run)) <= MAX_METRICS for run in runs)
    assert "| fusion=on | REGRESSION |" in runs[0].tags["mlflow.note.content"]
    state = json.loads(json.loads(view_tag("s", night.plan.phases, night.plan.factors, runs, 1, simulated=True))["state"])
    assert state["orderByKey"] == "metrics.`night_pct`" and state["orderByAsc"], "what became worse is on top"


def test_simulated_is_a_column_of_every_list_and_stands_over_every_chart(synthetic: Synthetic, tmp_path: Path) -> None:
    runs = view(synthetic, tmp_path)
    assert all(run.tags["mlflow.source.name"] == "SIMULATED 0.5.21" for run in runs)
    tag = json.loads(view_tag("s", synthetic.plan.phases, synthetic.plan.factors, runs, 1, simulated=True))
    state = json.loads(tag["state"])
    assert tag["name"].startswith("SIMULATED") and is_ours(json.dumps(tag))
    assert state["selectedColumns"][0] == "params.`engine_version`"
    assert all(section["name"].startswith("SIMULATED") for section in state["compareRunSections"])
    real = view(make(simulated=False), tmp_path)
    assert not any("SIMULATED" in text for run in real for text in [*run.tags.values(), *run.params.values(), run.name])
    assert "SIMULATED" not in view_tag("s", synthetic.plan.phases, synthetic.plan.factors, real, 1)


def test_values_have_five_digits_and_are_finite(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=2)
    broken = {"decode_c1": {"tpot_p50_ms": math.inf, "output_tok_s": math.nan, "ttft_p50_ms": 123.456789}}
    arms = tuple(item.model_copy(update={"values": broken}) for item in synthetic.decision.arms)
    odd = Synthetic(synthetic.plan, synthetic.launches, synthetic.decision.model_copy(update={"arms": arms}))
    run = arm(view(odd, tmp_path), "mscclpp=on,mscclpp_max_bytes=1MB")
    assert {metric.name: metric.value for metric in run.metrics if metric.name.startswith("c1/") and "effect" not in metric.name} == {
        "c1/ttft_p50_ms": 123.46
    }
    for item in view(odd, tmp_path):
        assert all(math.isfinite(metric.value) and metric.value == rounded(metric.value) for metric in item.metrics)


def test_while_running_arms_are_open(synthetic: Synthetic, tmp_path: Path) -> None:
    runs = view(synthetic, tmp_path, finished=False, decided=False)
    assert {run.status for run in runs if run.kind != "launch"} == {"RUNNING"}
    assert "no verdict yet" in runs[0].tags["mlflow.note.content"]


def test_view_is_a_function_of_the_records(synthetic: Synthetic, tmp_path: Path) -> None:
    assert [run.digest for run in view(synthetic, tmp_path)] == [run.digest for run in view(make(), tmp_path)]


def test_note_holds_answer_command_and_table_and_fits(synthetic: Synthetic) -> None:
    note = study_note(synthetic.plan, synthetic.decision, 40)
    assert note.startswith("**SIMULATED")
    assert synthetic.decision.recommendation.sentence in note
    assert "SGLANG_MSCCLPP_MAX_BYTES=1MB python -m sglang.launch_server" in note
    assert "| fusion=on | WORSE | -4.1 [-4.9, -3.3] |" in note
    big = make(blocks=1, arms=150)
    note = study_note(big.plan, big.decision, 150)
    assert len(note) <= LIMIT
    assert "more arms: see report.html" in note


def test_saved_view_shows_the_arms_of_its_study_and_fits_a_tag(tmp_path: Path) -> None:
    for count in (10, 150):
        synthetic = make(blocks=1, arms=count)
        text = view_tag(synthetic.plan.study, synthetic.plan.phases, synthetic.plan.factors, view(synthetic, tmp_path), 1)
        assert len(text) < 20000
        state = json.loads(json.loads(text)["state"])
        assert state["searchFilter"] == f"tags.study = '{synthetic.plan.study}' AND tags.kind = 'arm'"
        kinds = {chart["type"] for chart in state["compareRunCharts"]}
        assert {"PARALLEL", "BAR", "SCATTER"} <= kinds
        sections = {section["uuid"] for section in state["compareRunSections"]}
        assert all(chart["metricSectionId"] in sections for chart in state["compareRunCharts"])
        assert RootPaths(tmp_path).root.exists()


def test_revision_is_the_one_of_the_last_start() -> None:
    synthetic = make(blocks=1, arms=2)
    plan = synthetic.plan.model_copy(update={"identity": {}})
    assert code_revision(plan, []) == ""
    entries = [
        {"kind": "study_started", "code_revision": "a"},
        {"kind": "nodes", "nodes": [{"host": "h"}]},
        {"kind": "study_resumed", "code_revision": "b+"},
    ]
    assert code_revision(plan, entries) == "b+"
    assert code_revision(plan, [*entries, {"kind": "nodes", "nodes": [{"host": "h", "code_revision": "c"}]}]) == "c"


def test_levels_come_first_where_the_list_cuts_the_arms_names(tmp_path: Path) -> None:
    synthetic = make(blocks=1, arms=3)
    runs = view(synthetic, tmp_path)
    long = [run.model_copy(update={"name": f"chunked_prefill_size=2048+{run.name}"}) if run.kind == "arm" else run for run in runs]
    short = [run.model_copy(update={"name": "arm"}) if run.kind == "arm" else run for run in runs]

    def first(named: list[RunView]) -> str:
        state = json.loads(json.loads(view_tag("s", synthetic.plan.phases, synthetic.plan.factors, named, 1))["state"])
        return str(state["columnOrder"][1])

    assert first(long).startswith("params.") and first(short) == "tags.`verdict`"


def test_what_an_interrupted_study_has_open_is_killed_until_it_goes_on(synthetic: Synthetic, tmp_path: Path) -> None:
    begun, launched, stopped = {"kind": "study_started"}, {"kind": "launch_started"}, {"kind": "event", "text": INTERRUPTED}
    assert is_stopped([begun, launched, stopped])
    assert not is_stopped([begun, launched]) and not is_stopped([begun, launched, stopped, {"kind": "study_resumed"}])
    assert not is_stopped([]) and not is_stopped([begun, {"kind": "event", "text": "something else"}])
    study = write(tmp_path, synthetic, finished=False)
    runs = study_view(synthetic.plan, synthetic.launches, None, study, False, "4e1a9c2", stopped=True)
    assert {run.status for run in runs if run.kind in ("study", "arm")} == {"KILLED"} and runs[0].tags["status"] == "INTERRUPTED"
    assert {run.status for run in runs if run.kind == "launch"} == {
        run.status for run in view(synthetic, tmp_path / "b") if run.kind == "launch"
    }
