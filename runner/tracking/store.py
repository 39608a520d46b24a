"""Where MLflow keeps the view: the SQLite store of the results root, or a remote server.

mlflow is imported only when a store is opened, with its telemetry off."""

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from runner.errors import UserError
from runner.records.paths import RootPaths, safe_name
from runner.spec.study import TrackingSpec
from runner.tracking import sessions

if TYPE_CHECKING:
    from mlflow import MlflowClient
# MLflow refuses an empty name.
NO_EXPERIMENT = "no_experiment"


def uri_of(root: RootPaths, tracking: TrackingSpec) -> str:
    """`tracking.uri`, else the SQLite store of the root with its absolute path."""
    return tracking.uri or f"sqlite:///{root.database.absolute()}"


def is_local(uri: str) -> bool:
    return uri.startswith("sqlite:")


def open_client(root: RootPaths, tracking: TrackingSpec) -> "MlflowClient":
    """A client on a store that is there. Creates the SQLite store when it is missing (2-5 s). Raises UserError for a store
    of another MLflow version or a URI that MLflow does not know; mlflow's and requests' errors when a server does not answer."""
    uri = uri_of(root, tracking)
    _quiet(tracking)
    if tracking.uri is None:
        create_database(root)
    elif tracking.uri.startswith(("file:", "/", ".")) or "://" not in tracking.uri:
        raise UserError(f"tracking.uri={tracking.uri}: give http(s)://host:port of a server or sqlite:////absolute/path.db")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    _prepare_connections()
    try:
        client = MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        if "out-of-date" in str(error):
            raise UserError(f"the store was made by an older MLflow; upgrade it with: mlflow db upgrade {uri}") from None
        raise
    sessions.quicken(client)
    return client


def create_database(root: RootPaths) -> None:
    """Creates the SQLite store once: under a file lock, beside its place, then renamed. Processes that race wait; one that is
    killed half-way leaves nothing that looks ready."""
    if root.database.exists():
        return
    root.root.mkdir(parents=True, exist_ok=True)
    with FileLock(root.database.with_suffix(".lock")):
        if root.database.exists():
            return
        _quiet(TrackingSpec())
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        building = root.root / f".{root.database.name}.building"
        _remove(building)
        store = SqlAlchemyStore(f"sqlite:///{building.absolute()}", artifact_root(root).as_uri())  # type: ignore[no-untyped-call]
        store.engine.dispose()
        _write_ahead(building)
        os.replace(building, root.database)


def _write_ahead(database: Path) -> None:
    """WAL: the UI reads while we write, and a commit does not wait for three syncs. A property of the file, for all who open it."""
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
    finally:
        connection.close()


def _prepare_connections() -> None:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    if not event.contains(Engine, "connect", sessions.set_up):
        event.listen(Engine, "connect", sessions.set_up)


def artifact_root(root: RootPaths) -> Path:
    return root.artifacts.absolute()


def experiment_id(client: "MlflowClient", root: RootPaths, tracking: TrackingSpec, name: str) -> str:
    """The MLflow experiment of an experiment name ('' for a study that was written on the command line); made, or restored from the
    bin, where needed."""
    from mlflow.exceptions import MlflowException

    name = name or NO_EXPERIMENT
    found = client.get_experiment_by_name(name)
    if found is None:
        place = (artifact_root(root) / safe_name(name)).as_uri() if tracking.uri is None else None
        try:
            return str(client.create_experiment(name, artifact_location=place))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # somebody was quicker
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _remove(building: Path) -> None:
    for path in building.parent.glob(f"{building.name}*"):
        path.unlink(missing_ok=True)


def _quiet(tracking: TrackingSpec) -> None:
    """Set before the first import of mlflow, which reads them then. Retries are ours: mlflow's own would hold a caller for minutes."""
    defaults = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(max(1, min(30, tracking.timeout_s)))),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    import logging

    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
