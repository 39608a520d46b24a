"""Against a real SQLite store: idempotent, at least once, repeats harmless."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from runner.errors import UserError
from runner.records.files import write_json
from runner.records.paths import RootPaths, StudyPaths
from runner.records.words import INTERRUPTED
from runner.spec.study import TrackingSpec
from runner.tracking import mlflow_tracker, store
from runner.tracking.mlflow_tracker import TrackReport, track_study, waiting
from runner.tracking.store import create_database, uri_of
from tests.reporting.synthetic import Synthetic, make, write

LOCAL = TrackingSpec()


@pytest.fixture(scope="module")
def small() -> Synthetic:
    return make(blocks=2, arms=3)


def client(root: RootPaths) -> MlflowClient:
    return MlflowClient(tracking_uri=uri_of(root, LOCAL))


def stored(root: RootPaths) -> list[Any]:
    found = client(root)
    return list(found.search_runs([e.experiment_id for e in found.search_experiments()], max_results=1000))


def by_key(root: RootPaths) -> dict[str, Any]:
    return {run.data.tags["key"]: run for run in stored(root)}


def content(root: RootPaths) -> dict[str, Any]:
    return {key: (run.data.params, run.data.metrics, run.info.status, run.info.run_name) for key, run in by_key(root).items()}


def test_a_study_is_shown_as_its_view_says(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    report = track_study(root, study, LOCAL)
    assert report.complete and report.written == 1 + 3 + 6
    runs = by_key(root)
    assert len(runs) == 10
    _, wanted, _ = mlflow_tracker.read_view(study)
    for want in wanted:
        run = runs[want.key]
        assert run.data.params == want.params
        flat = {metric.name: metric.value for metric in want.metrics if not metric.step}
        assert flat.items() <= run.data.metrics.items()
        assert want.tags.items() <= run.data.tags.items()
        assert (run.info.status, run.info.run_name, run.info.start_time, run.info.end_time) == (
            want.status,
            want.name,
            want.start_ms,
            want.end_ms,
        )
        if want.parent:
            assert run.data.tags["mlflow.parentRunId"] == runs[want.parent].info.run_id
    history = client(root).get_metric_history(runs[f"{small.plan.study}/arm/baseline"].info.run_id, "curve/tpot_p50_ms")
    assert [point.step for point in history] == [1, 16, 64]


def test_artifacts_are_in_the_root_and_share_the_disk_blocks(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    run = by_key(root)[f"{small.plan.study}/study"]
    assert {item.path for item in client(root).list_artifacts(run.info.run_id)} == {"decision.json", "plan.json", "journal.jsonl"}
    place = root.artifacts / "overlap_grid" / run.info.run_id / "artifacts" / "decision.json"
    assert place.samefile(study.decision)
    assert Path(client(root).download_artifacts(run.info.run_id, "plan.json")).read_text() == study.plan.read_text()


def test_second_pass_writes_nothing(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    before = stored(root)
    report = track_study(root, study, LOCAL)
    assert (report.written, report.unchanged) == (0, 10)
    assert [run.to_dictionary() for run in stored(root)] == [run.to_dictionary() for run in before]


@pytest.mark.parametrize("loss", ["deleted", "garbage"])
def test_lost_state_is_read_back_from_mlflow(root: RootPaths, small: Synthetic, loss: str) -> None:
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    before = content(root)
    if loss == "deleted":
        study.tracking_state.unlink()
    else:
        study.tracking_state.write_text('{"schema": 1, "uri":')
    assert track_study(root, study, LOCAL).complete
    assert content(root) == before
    assert len(stored(root)) == 10


def test_an_interrupted_study_is_killed_and_runs_again_when_it_goes_on(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small, finished=False)

    def statuses(kind: str, **fields: str) -> tuple[set[str], int]:
        with open(study.journal, "a", encoding="utf-8") as file:
            file.write(json.dumps({"schema": 1, "seq": 99, "t": 1.0, "kind": kind, **fields}) + "\n")
        assert track_study(root, study, LOCAL).complete
        return {run.info.status for run in stored(root) if run.data.tags["kind"] != "launch"}, len(stored(root))

    assert statuses("event", text=INTERRUPTED) == ({"KILLED"}, 10)
    assert statuses("study_resumed") == ({"RUNNING"}, 10)


class Cut(Exception):
    """Stands for a process that dies."""


@pytest.mark.parametrize("call", ["create_run", "log_batch", "set_terminated"])
@pytest.mark.parametrize("after", [False, True])
def test_a_pass_that_dies_anywhere_is_repaired_by_the_next(
    root: RootPaths, small: Synthetic, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    study = write(root.root, small)
    original, calls = getattr(MlflowClient, call), Counter[str]()

    def dying(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        calls[call] += 1
        if calls[call] == 4 and not after:
            raise Cut
        result = original(self, *args, **kwargs)
        if calls[call] == 4:
            raise Cut
        return result

    monkeypatch.setattr(MlflowClient, call, dying)
    with pytest.raises(Cut):
        track_study(root, study, LOCAL)
    monkeypatch.undo()
    assert waiting(root, study, LOCAL)
    assert track_study(root, study, LOCAL).complete
    keys = Counter(run.data.tags["key"] for run in stored(root))
    assert set(keys.values()) == {1} and len(keys) == 10
    assert {run.info.status for run in stored(root)} <= {"FINISHED", "FAILED"}


def test_of_two_runs_with_one_key_one_stays(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    key = f"{small.plan.study}/arm/baseline"
    first = by_key(root)[key]
    client(root).create_run(first.info.experiment_id, tags={"key": key, "study": small.plan.study, "kind": "arm"})
    study.tracking_state.unlink()
    track_study(root, study, LOCAL)
    assert Counter(run.data.tags["key"] for run in stored(root))[key] == 1


def test_a_study_grows_and_is_then_decided(root: RootPaths, small: Synthetic) -> None:
    half = Synthetic(small.plan, small.launches[:3], small.decision)
    study = write(root.root, half, finished=False)
    track_study(root, study, LOCAL)
    arm = f"{small.plan.study}/arm/baseline"
    assert by_key(root)[arm].info.status == "RUNNING"
    whole = write(root.root / "elsewhere", small)
    for name in ("journal.jsonl", "decision.json"):
        shutil.copy(whole.folder / name, study.folder / name)
    report = track_study(root, study, LOCAL)
    assert report.unchanged == 3  # the launches that were there stay untouched
    run = by_key(root)[arm]
    assert run.info.status == "FINISHED" and run.data.tags["status"] == "BASELINE"
    assert len(stored(root)) == 10


def test_a_new_judgement_replaces_values_and_leaves_one_run(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    name = small.decision.arms[1].name
    values = {"decode_c1": {"tpot_p50_ms": 1.5}, "decode_c16": {"tpot_p50_ms": 2.5}}
    arms = [arm.model_copy(update={"values": values, "verdict": "SAME"}) if arm.name == name else arm for arm in small.decision.arms]
    write_json(study.decision, small.decision.model_copy(update={"arms": tuple(arms)}).model_dump(mode="json", by_alias=True))
    track_study(root, study, LOCAL)
    run = by_key(root)[f"{small.plan.study}/arm/{name}"]
    assert run.data.metrics["c1/tpot_p50_ms"] == 1.5 and run.data.tags["verdict"] == "SAME"
    history = client(root).get_metric_history(run.info.run_id, "curve/tpot_p50_ms")
    assert [(point.step, point.value) for point in history] == [(1, 1.5), (16, 2.5)]  # no point of the old curve is left
    assert len(stored(root)) == 10


def test_two_studies_of_one_experiment_share_it(root: RootPaths, small: Synthetic) -> None:
    other = make(blocks=1, arms=2, study="overlap_grid-2")
    for synthetic in (small, other):
        track_study(root, write(root.root, synthetic), LOCAL)
    experiments = [e for e in client(root).search_experiments() if e.name != "Default"]
    assert [e.name for e in experiments] == ["overlap_grid"]
    assert sum(name.startswith("mlflow.sharedViewState.") for name in experiments[0].tags) == 2
    assert "kind = arm" in experiments[0].tags["mlflow.note.content"]


def test_old_saved_views_go_the_own_one_and_foreign_ones_stay(root: RootPaths, small: Synthetic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.saved_view.KEPT", 1)
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    (experiment,) = [e for e in client(root).search_experiments() if e.name != "Default"]
    client(root).set_experiment_tag(experiment.experiment_id, "mlflow.sharedViewState.mine", '{"name": "My own view", "state": "{}"}')
    track_study(root, write(root.root, make(blocks=5, arms=2, study="later")), LOCAL)
    tags = client(root).get_experiment(experiment.experiment_id).tags
    names = [json.loads(text)["name"] for name, text in tags.items() if name.startswith("mlflow.sharedViewState.")]
    assert sorted(names) == ["My own view", "SIMULATED study later"], names


def test_experiment_in_the_bin_is_restored(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    track_study(root, study, LOCAL)
    (experiment,) = [e for e in client(root).search_experiments() if e.name != "Default"]
    client(root).delete_experiment(experiment.experiment_id)
    study.tracking_state.unlink()
    assert track_study(root, study, LOCAL).complete
    assert client(root).get_experiment(experiment.experiment_id).lifecycle_stage == "active"


def test_moved_root_is_said(make_root: Callable[[str], RootPaths], small: Synthetic) -> None:
    old = make_root("old")
    track_study(old, write(old.root, small), LOCAL)
    moved = RootPaths(old.root.parent / "new")
    old.root.rename(moved.root)
    report = track_study(moved, moved.study(small.plan.study), LOCAL)
    assert any("has moved" in note for note in report.notes)


def test_switched_off(tmp_path: Path, small: Synthetic) -> None:
    root = RootPaths(tmp_path)
    report = track_study(root, write(tmp_path, small), TrackingSpec(enabled=False))
    assert "tracking is off" in report.notes[0] and not root.database.exists()


@pytest.mark.parametrize("uri", ["mlruns", "file:///x", "./x"])
def test_file_stores_are_refused_with_advice(tmp_path: Path, small: Synthetic, uri: str) -> None:
    with pytest.raises(UserError, match="http"):
        track_study(RootPaths(tmp_path), write(tmp_path, small), TrackingSpec(uri=uri))


def test_not_a_study(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match=r"no plan\.json"):
        track_study(RootPaths(tmp_path), StudyPaths(tmp_path / "x"), LOCAL)


def test_report_tells_where_to_look_or_what_waits() -> None:
    done = TrackReport(uri="sqlite:///x.db", study="s", link="http://h/#/a", study_link="http://h/#/b")
    assert "mlflow ui --backend-store-uri sqlite:///x.db" in str(done) and "http://h/#/a" in str(done)
    left = TrackReport(uri="http://h", study="s", waiting=("a", "b"), error="Read timed out")
    assert "2 runs of s wait (Read timed out)" in str(left) and "action=track study.name=s" in str(left)


def test_store_that_died_in_the_making_is_made_again(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = RootPaths(tmp_path)
    (tmp_path / ".mlflow.db.building").write_bytes(template.read_bytes()[:8192])
    (tmp_path / ".mlflow.db.building-journal").write_bytes(b"torn")
    create_database(root)
    assert {e.name for e in client(root).search_experiments()} == {"Default"}
    assert [path.name for path in tmp_path.iterdir() if "building" in path.name] == []


def test_a_study_without_an_experiment_has_a_place_too(root: RootPaths) -> None:
    client = store.open_client(root, TrackingSpec())
    identifier = store.experiment_id(client, root, TrackingSpec(), "")
    assert client.get_experiment(identifier).name == store.NO_EXPERIMENT
    assert store.experiment_id(client, root, TrackingSpec(), "") == identifier
