"""Ctrl-C, SIGTERM and a lost terminal end a study in order: nothing finished, records kept, GPUs freed. A second Ctrl-C kills."""

import os
import signal
from types import FrameType


class StopRequest:
    """Set by the first signal; the study loop asks it several times a second. The second signal ends the process at once:
    the guard, which is no part of it, ends the servers."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(130)
        self.signal = number

    def asked(self) -> bool:
        return self.signal is not None
