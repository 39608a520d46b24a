"""Sessions of MLflow's SQLite store that do not repeat three PRAGMA statements each: they are most of what a store executes.

A PRAGMA holds for a connection, so it is set when one is opened. Best effort: where MLflow keeps its sessions otherwise, nothing is
changed and nothing but time is lost."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

CONNECTION = ("foreign_keys = ON", "busy_timeout = 20000", "case_sensitive_like = true", "synchronous = NORMAL")
"""MLflow's own three. And: in WAL mode synchronous=NORMAL cannot damage the file; a power cut may lose the last commits, which the
next pass writes again."""


def set_up(connection: object, _record: object = None) -> None:
    """Listener of SQLAlchemy's `connect`: connections of this process, and only SQLite's."""
    if isinstance(connection, sqlite3.Connection):
        for pragma in CONNECTION:
            connection.execute(f"PRAGMA {pragma}")


def quicken(client: "MlflowClient") -> bool:
    """Gives the client's SQLite store sessions without PRAGMA statements; False when this MLflow is built otherwise."""
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    engine = getattr(store, "engine", None)
    if engine is None or not hasattr(store, "ManagedSessionMaker") or engine.dialect.name != "sqlite":
        return False
    from sqlalchemy.orm import sessionmaker

    store.ManagedSessionMaker = _maker(sessionmaker(bind=engine))  # type: ignore[union-attr]
    return True


def _maker(make: Any) -> Any:
    """As mlflow.store.db.utils makes them: committed at the end, rolled back on an error, errors as MLflow's own."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import BAD_REQUEST, INTERNAL_ERROR, TEMPORARILY_UNAVAILABLE
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    @contextmanager
    def managed(read_only: bool = True) -> Iterator[Any]:
        with make() as session:
            try:
                yield session
                session.commit()
            except BaseException as error:
                session.rollback()
                if isinstance(error, MlflowException) or not isinstance(error, Exception):
                    raise
                code = INTERNAL_ERROR
                if isinstance(error, SQLAlchemyError):
                    code = TEMPORARILY_UNAVAILABLE if isinstance(error, OperationalError) else BAD_REQUEST
                raise MlflowException(str(error), error_code=code) from error

    return managed
