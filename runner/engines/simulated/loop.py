"""One thread, one epoll, timers to the microsecond. uvloop's timers are rounded to whole milliseconds, which the simulated token
times would show; and without asyncio the server starts in a third of the time."""

import heapq
import select
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Loop:
    """Times are time.monotonic(), seconds."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callback]] = []
        self._sequence = 0
        self._running = True

    @property
    def now(self) -> float:
        return time.monotonic()

    def at(self, when: float, callback: Callback) -> None:
        """Calls back at `when`, timers of the same time in the order they were set."""
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, callback))

    def after(self, seconds: float, callback: Callback) -> None:
        self.at(time.monotonic() + seconds, callback)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Calls back with the events of `fd`."""
        known = fd in self._readers
        self._readers[fd] = callback
        if known:
            self._poll.modify(fd, events)
        else:
            self._poll.register(fd, events)

    def forget(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Until stop() is called."""
        timers = self._timers
        while self._running:
            timeout = 60.0
            if timers:
                timeout = timers[0][0] - time.monotonic()
            if timeout > 0:
                # epoll's own time-out has whole milliseconds; select on the epoll descriptor has microseconds
                try:
                    ready, _, _ = select.select([self._poll], [], [], timeout)
                except InterruptedError:
                    continue
            else:
                ready = [self._poll]
            if ready:
                for fd, events in self._poll.poll(0):
                    callback = self._readers.get(fd)
                    if callback is not None:
                        callback(events)
            now = time.monotonic()
            while timers and timers[0][0] <= now and self._running:
                heapq.heappop(timers)[2]()
