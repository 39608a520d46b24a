"""Watches a server while it is measured: one that has died is noticed within a second, not when a request runs out of time."""

import threading
from types import TracebackType

from runner.engines.base import LaunchFailed, Server
from runner.records.schema import Failure

LOOK_S = 0.5


class Vigil:
    """A context around everything that is asked of a ready server. `background`: look between the checks too (a server that is not
    ours is only looked at when it is checked, since looking means asking it)."""

    def __init__(self, server: Server, background: bool = True) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._watch, name="vigil", daemon=True) if background else None

    def __enter__(self) -> "Vigil":
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def check(self, stage: str) -> None:
        """Raises LaunchFailed when the server has died, with `stage` as where it was noticed."""
        self._look()
        if self._failure is not None:
            raise LaunchFailed(self._failure.model_copy(update={"stage": stage}))

    def _watch(self) -> None:
        while self._failure is None and not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = self._server.fallen()
