"""The store's sessions without PRAGMA statements keep what MLflow's own sessions promise."""

import pytest

from runner.records.paths import RootPaths
from runner.spec.study import TrackingSpec
from runner.tracking import sessions, store


def test_each_connection_has_what_mlflow_sets_for_each_session(root: RootPaths) -> None:
    client = store.open_client(root, TrackingSpec())
    assert sessions.quicken(client), "this MLflow keeps its sessions elsewhere: the view is rebuilt slower"
    with client._tracking_client.store.ManagedSessionMaker() as session:
        from sqlalchemy import text

        found = {name: session.execute(text(f"PRAGMA {name}")).scalar() for name in ("foreign_keys", "busy_timeout", "synchronous")}
    assert found == {"foreign_keys": 1, "busy_timeout": 20000, "synchronous": 1}


def test_an_error_of_the_database_is_mlflows_and_nothing_of_it_stays(root: RootPaths) -> None:
    from mlflow.exceptions import MlflowException
    from sqlalchemy import text

    client = store.open_client(root, TrackingSpec())
    maker = client._tracking_client.store.ManagedSessionMaker
    with pytest.raises(MlflowException, match="no such table"), maker(read_only=False) as session:
        session.execute(text("INSERT INTO experiment_tags (key, value, experiment_id) VALUES ('a', 'b', 0)"))
        session.execute(text("SELECT * FROM nowhere"))
    with maker() as session:
        assert session.execute(text("SELECT COUNT(*) FROM experiment_tags WHERE key = 'a'")).scalar() == 0
    with pytest.raises(MlflowException, match="not found"):
        client.get_run("0" * 32)
