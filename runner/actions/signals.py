"""Ctrl-C, SIGTERM and a lost terminal end a study in order: nothing finished, records kept, GPUs freed. A second Ctrl-C kills."""

import os
import signal
import time
from types import FrameType

# One request to stop can arrive as several signals: `timeout` signals its child and then the child's whole group, and a
# wrapper (uv, make, a shell) passes on what the terminal has sent to everybody. Nobody presses Ctrl-C twice within this time.
SAME_REQUEST_S = 1.0


class StopRequest:
    """Set by the first signal; the study loop asks it several times a second. A second Ctrl-C, by a person who does not want to
    wait, ends the process at once: the guard, which is no part of it, ends the servers. SIGTERM and SIGHUP never do, however
    often they come: who sends those waits, or has SIGKILL."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._since = 0.0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._since >= SAME_REQUEST_S:
            os._exit(130)

    def asked(self) -> bool:
        return self.signal is not None
