"""A clock for records: Unix seconds that neither jump nor run backwards while a process lives.

A wall clock is set by the administrator, by NTP or by a virtual machine that wakes up. Differences of such times are no durations
and their order is no order, so records take their times from here: the wall clock once, then the monotonic one."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SteadyClock:
    """Called, it gives Unix seconds. `not_before`: the last time that an earlier process wrote; a wall clock that was set back in
    between starts from there, so that the order of records stays the order of events."""

    not_before: float = 0.0
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _offset: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_offset", max(self.wall(), self.not_before) - self.monotonic())

    def __call__(self) -> float:
        return self._offset + self.monotonic()
