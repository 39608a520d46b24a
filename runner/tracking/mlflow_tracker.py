"""Brings MLflow to what the records say. At least once, with keys that make repeats harmless.

Every run carries the tags `key` (which run of which study) and `records` (digest of what was written). The state file is a
cache of both: without it, or after a crash in the middle, they are read back from MLflow."""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlparse

from filelock import FileLock
from pydantic import Field, ValidationError

from runner.errors import UserError
from runner.records.decision import Decision
from runner.records.files import read_json, write_json
from runner.records.journal import launches, read_journal
from runner.records.paths import RootPaths, StudyPaths
from runner.records.plan import Plan
from runner.records.words import code_revision
from runner.spec.base import Strict
from runner.spec.study import TrackingSpec
from runner.tracking import saved_view, store
from runner.tracking.note import BOXES, EXPERIMENT_NOTE
from runner.tracking.view import RunView, is_stopped, study_view

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SAVE_EVERY_S = 2.0
_TAG_LIMIT = 7900
_COMPARED = 24


class Logged(Strict):
    """One run as MLflow has it. `artifacts`: file -> size and time of change; `status` as it was sent last."""

    run_id: str
    status: str = ""
    records: str = ""
    artifacts: dict[str, str] = Field(default_factory=dict)


class State(Strict):
    """`tracking.json` of a study. `in_flight`: a pass was cut off, so runs may exist that are not listed."""

    schema_version: int = Field(default=1, alias="schema")
    uri: str
    experiment_id: str = ""
    in_flight: bool = True
    runs: dict[str, Logged] = Field(default_factory=dict)
    view: str = ""


class TrackReport(Strict):
    """What a pass did. `waiting`: keys of runs that MLflow does not hold yet as the records have them."""

    uri: str
    study: str = ""
    experiment: str = ""
    link: str = ""
    study_link: str = ""
    compare_link: str = ""
    boxes_link: str = ""
    written: int = 0
    unchanged: int = 0
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not self.waiting and self.error is None

    def __str__(self) -> str:
        """For the person: where to look, or what waits and how it is sent."""
        lines = list(self.notes)
        if self.complete and self.link:
            if not self.uri.startswith("http"):
                lines.append(f"in MLflow: MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --backend-store-uri {self.uri} --workers 1")
            lines.append(f"arms, compared: {self.link}")
            lines.append(f"report and note: {self.study_link}")
            if self.boxes_link:
                lines.append(f"box plots of the launches: {self.boxes_link}")
            if self.compare_link:
                lines.append(f"compare page: {self.compare_link}")
        elif not self.complete:
            reason = f" ({self.error})" if self.error else ""
            lines.append(f"MLflow does not hold everything yet: {len(self.waiting)} runs of {self.study} wait{reason}.")
            lines.append(f"Nothing is lost; send them with: python -m runner action=track study.name={self.study}")
        return "\n".join(lines)


def read_view(study: StudyPaths) -> tuple[Plan, list[RunView], bool]:
    """Plan, wanted runs, and whether the study is finished. Raises UserError where the records are not a study's."""
    if not study.plan.is_file():
        raise UserError(f"{study.folder} has no plan.json; give the folder of a study")
    plan = Plan.model_validate(read_json(study.plan))
    entries = read_journal(study.journal) if study.journal.exists() else []
    decision = Decision.model_validate(read_json(study.decision)) if study.decision.is_file() else None
    finished = any(entry.get("kind") == "study_finished" for entry in entries)
    return plan, study_view(plan, launches(entries), decision, study, finished, code_revision(plan, entries), is_stopped(entries)), finished


def waiting(root: RootPaths, study: StudyPaths, tracking: TrackingSpec) -> tuple[str, ...]:
    """Keys of runs that are not in MLflow as the records have them; from files alone, without asking MLflow."""
    state = _read_state(study, store.uri_of(root, tracking))
    _, runs, _ = read_view(study)
    return tuple(run.key for run in runs if _is_open(run, state.runs.get(run.key)))


def track_study(root: RootPaths, study: StudyPaths, tracking: TrackingSpec, stop: Callable[[], bool] = lambda: False) -> TrackReport:
    """One pass: writes what is new or changed, leaves the rest alone. Idempotent; may be killed at any point and repeated.
    `stop` is asked between runs. Raises UserError, or mlflow's or the network's error when the store does not answer."""
    started = time.monotonic()
    uri = store.uri_of(root, tracking)
    if not tracking.enabled:
        return TrackReport(uri=uri, study=study.name, notes=("tracking is off (tracking.enabled=false)",))
    with FileLock(study.folder / "tracking.lock"):
        plan, runs, finished = read_view(study)
        state = _read_state(study, uri)
        wanted = [run for run in runs if _is_open(run, state.runs.get(run.key))]
        client = store.open_client(root, tracking)
        identifier = store.experiment_id(client, root, tracking, plan.experiment)
        if state.experiment_id != identifier:
            state = State(uri=uri, experiment_id=identifier)
            wanted = runs
        session = _Session(client, study, state, local=tracking.uri is None)
        if wanted:
            session.reconcile(plan.study)
            try:
                for run in wanted:
                    if stop():
                        break
                    session.write(run)
            except BaseException:
                session.save(in_flight=True)
                raise
        notes = session.save_view(plan, runs) if finished or not session.state.view else ()
        session.save(in_flight=False)
        left = tuple(run.key for run in runs if _is_open(run, session.state.runs.get(run.key)))
        notes += _moved(client, root, tracking, identifier)
    base = tracking.uri if tracking.uri and tracking.uri.startswith("http") else "http://127.0.0.1:5000"
    return TrackReport(
        uri=uri,
        study=study.name,
        experiment=plan.experiment,
        link=saved_view.link(base, identifier, saved_view.view_key(plan.study)),
        study_link=_run_link(base, identifier, session.state.runs.get(f"{plan.study}/study")),
        compare_link=_compare_link(base, identifier, runs, session.state),
        boxes_link=_boxes_link(base, identifier, runs[0], session.state),
        written=session.written,
        unchanged=len(runs) - len(wanted),
        waiting=left,
        notes=notes,
        seconds=time.monotonic() - started,
    )


def _run_link(base: str, experiment: str, logged: Logged | None) -> str:
    return f"{base.rstrip('/')}/#/experiments/{experiment}/runs/{logged.run_id}?workflowType=machine_learning" if logged else ""


def _boxes_link(base: str, experiment: str, study: RunView, state: State) -> str:
    """The artifact page with the box plots: those of MLflow's compare page take no axes from outside."""
    logged = state.runs.get(study.key)
    if logged is None or not any(Path(file).name == BOXES for file, _ in study.artifacts):
        return ""
    return f"{base.rstrip('/')}/#/experiments/{experiment}/runs/{logged.run_id}/artifacts/plots/{BOXES}?workflowType=machine_learning"


def _compare_link(base: str, experiment: str, runs: list[RunView], state: State) -> str:
    """MLflow's compare page over the arms that carry metrics ('' for fewer than two, or too many for one URL): arms without
    any would leave its metric list empty."""
    arms = [state.runs[run.key].run_id for run in runs if run.kind == "arm" and run.metrics and run.key in state.runs]
    if not 2 <= len(arms) <= _COMPARED:
        return ""
    chosen, where = quote(json.dumps(arms, separators=(",", ":"))), quote(json.dumps([experiment]))
    return f"{base.rstrip('/')}/#/compare-runs?runs={chosen}&experiments={where}"


def _is_open(run: RunView, logged: Logged | None) -> bool:
    if logged is None or logged.records != run.digest:
        return True
    return any(logged.artifacts.get(f"{folder}/{Path(file).name}") != _stamp(file) for file, folder in run.artifacts)


def _stamp(file: str) -> str:
    try:
        found = Path(file).stat()
    except OSError:
        return "gone"
    return f"{found.st_size}-{found.st_mtime_ns}"


def _read_state(study: StudyPaths, uri: str) -> State:
    """The state if it is readable and of this store; else an empty one (everything is read back from MLflow)."""
    try:
        state = State.model_validate(read_json(study.tracking_state))
    except (OSError, ValueError, ValidationError):
        return State(uri=uri)
    return state if state.uri == uri else State(uri=uri)


def _moved(client: "MlflowClient", root: RootPaths, tracking: TrackingSpec, identifier: str) -> tuple[str, ...]:
    if tracking.uri is not None:
        return ()
    place = str(client.get_experiment(identifier).artifact_location)
    if place.startswith(store.artifact_root(root).as_uri()):
        return ()
    return (f"MLflow keeps the artifacts of this experiment at {place}: the results root has moved; MLflow stores absolute paths",)


class _Session:
    """One pass over one study."""

    def __init__(self, client: "MlflowClient", study: StudyPaths, state: State, local: bool) -> None:
        self._client, self._study, self._local = client, study, local
        self.state = state
        self.written = 0
        self._saved = time.monotonic()

    def save(self, in_flight: bool) -> None:
        self.state = self.state.model_copy(update={"in_flight": in_flight})
        write_json(self._study.tracking_state, self.state.model_dump(mode="json", by_alias=True))
        self._saved = time.monotonic()

    def reconcile(self, study: str) -> None:
        """Reads back what MLflow holds when the state cannot be trusted; of two runs with one key the older stays."""
        if self.state.in_flight:
            for run in self._runs_of(study):
                key, records = run.data.tags.get("key"), run.data.tags.get("records", "")
                if key is None:
                    continue
                known = self.state.runs.get(key)
                if known is None or known.run_id == run.info.run_id:
                    kept = known.artifacts if known else {}
                    self.state.runs[key] = Logged(run_id=run.info.run_id, status=run.info.status, records=records, artifacts=kept)
                else:
                    self._client.delete_run(run.info.run_id)
        self.save(in_flight=True)

    def _runs_of(self, study: str) -> Iterable[Any]:
        token = None
        while True:
            page = self._client.search_runs(
                [self.state.experiment_id],
                f'tags.study = "{study}"',
                max_results=1000,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def write(self, run: RunView) -> None:
        """Creates or updates one run, then its artifacts, then its end."""
        logged = self.state.runs.get(run.key)
        if logged is not None and logged.records and logged.records.split("-")[0] != run.fixed:
            self._client.delete_run(logged.run_id)  # params and points of curves cannot be changed
            logged = None
        created = logged is None
        if logged is None:
            logged = self._create(run)
        if logged.records != run.digest:
            self._log(run, logged, created)
        artifacts = self._upload(run, logged)
        self.state.runs[run.key] = Logged(run_id=logged.run_id, status=run.status, records=run.digest, artifacts=artifacts)
        self.written += 1
        if time.monotonic() - self._saved > _SAVE_EVERY_S:
            self.save(in_flight=True)

    def _create(self, run: RunView) -> Logged:
        tags = {**{name: value[:_TAG_LIMIT] for name, value in run.tags.items()}, "key": run.key, "kind": run.kind}
        if run.parent is not None and (parent := self.state.runs.get(run.parent)):
            tags["mlflow.parentRunId"] = parent.run_id
        made = self._client.create_run(self.state.experiment_id, start_time=run.start_ms or None, tags=tags, run_name=run.name[:250])
        logged = Logged(run_id=made.info.run_id)
        self.state.runs[run.key] = logged
        return logged

    def _log(self, run: RunView, logged: Logged, created: bool) -> None:
        """`created`: the tags went with the creation (a store writes tags one by one, which is most of its time)."""
        from mlflow.entities import Metric, Param, RunTag

        run_id = logged.run_id
        if run.status == "RUNNING" and logged.status not in ("", "RUNNING"):
            self._client.update_run(run_id, status="RUNNING")  # a resumed study's, which was KILLED
        elif run.status != "RUNNING":  # before the batch: `records` goes last of all, for with it the run counts as written
            self._client.set_terminated(run_id, run.status, run.end_ms or None)
        tags = {**({} if created else run.tags), "records": run.digest}
        self._client.log_batch(
            run_id,
            metrics=[Metric(item.name, item.value, run.end_ms, item.step) for item in run.metrics],
            params=[Param(name, value[:6000] or "-") for name, value in run.params.items()],
            tags=[RunTag(name, value[:_TAG_LIMIT]) for name, value in tags.items()],
        )

    def _upload(self, run: RunView, logged: Logged) -> dict[str, str]:
        done = dict(logged.artifacts)
        for file, folder in run.artifacts:
            name, stamp = f"{folder}/{Path(file).name}", _stamp(file)
            if done.get(name) == stamp or stamp == "gone":
                continue
            if not (self._local and self._link(logged.run_id, file, folder)):
                self._client.log_artifact(logged.run_id, file, folder or None)
            done[name] = stamp
        return done

    def _link(self, run_id: str, file: str, folder: str) -> bool:
        """A hard link instead of a second copy where the store is on the same disk; False: copy it the ordinary way."""
        place = urlparse(self._artifact_uri(run_id))
        if place.scheme != "file":
            return False
        target = Path(unquote(place.path)) / folder / Path(file).name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            os.link(file, target)
        except OSError:
            return False
        return True

    def _artifact_uri(self, run_id: str) -> str:
        return f"{self._location()}/{run_id}/artifacts"

    def _location(self) -> str:
        if not hasattr(self, "_place"):
            self._place = str(self._client.get_experiment(self.state.experiment_id).artifact_location).rstrip("/")
        return self._place

    def save_view(self, plan: Plan, runs: list[RunView]) -> tuple[str, ...]:
        """Best effort: the view is a convenience of one MLflow version, not a result."""
        from mlflow.exceptions import MlflowException

        key = saved_view.view_key(plan.study)
        now = max((run.end_ms for run in runs), default=0)
        text = saved_view.view_tag(plan.study, plan.phases, plan.factors, runs, now, plan.simulated)
        if self.state.view == text:
            return ()
        try:
            self._client.set_experiment_tag(self.state.experiment_id, saved_view.TAG_PREFIX + key, text)
            self._client.set_experiment_tag(self.state.experiment_id, "mlflow.note.content", EXPERIMENT_NOTE)
            self._drop_old_views(keep=saved_view.TAG_PREFIX + key)
        except MlflowException as error:
            return (f"no saved view: {error}",)
        self.state = self.state.model_copy(update={"view": text})
        return ()

    def _drop_old_views(self, keep: str) -> None:
        """A nightly experiment would collect a view a night; the newest ones stay."""
        tags = self._client.get_experiment(self.state.experiment_id).tags
        ours = [(text, name) for name, text in tags.items() if name.startswith(saved_view.TAG_PREFIX) and saved_view.is_ours(text)]
        ours.sort(key=lambda item: item[0].partition('"createdAt": ')[2][:13])
        for _, name in ours[: -saved_view.KEPT]:
            if name != keep:
                self._client.delete_experiment_tag(self.state.experiment_id, name)
