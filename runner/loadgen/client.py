"""Drives one load: a closed loop or an absolute schedule over keep-alive connections. Runs inside a worker's event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns, process_time
from urllib.parse import urlsplit

from runner.loadgen.protocol import Connection, Exchange, Readers, connect, resolve

NS = 1_000_000_000
BEAT_S = 0.025
BEATS_A_SWEEP = 4
BUILD_NS = 1_000_000
GIVE_UP_AFTER = 8


@dataclass(frozen=True)
class Target:
    """Where to connect: a plain http URL, resolved once."""

    host: str
    port: int
    address: str
    prefix: str

    @staticmethod
    def of(url: str) -> "Target":
        """Raises ValueError for anything but http, OSError for an unknown host."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the server's URL must be http://host:port, not {url!r}")
        port = parts.port or 80
        return Target(parts.netloc, port, resolve(parts.hostname, port), parts.path.rstrip("/"))


@dataclass
class Outcome:
    """What a drive left: exchanges in the order sent, and the client's own behaviour (ns; CPU in seconds)."""

    exchanges: list[Exchange] = field(default_factory=list)
    lags_ns: list[int] = field(default_factory=list)
    stall_max_ns: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    asked_at: int = 0
    stopped_sending: int = 0
    gave_up: str = ""


class Drive:
    """One load. `make(i)` gives the bytes of request number i (it is called ahead of time where there is time).

    Exactly one of `schedule` (seconds from the start; open loop, at most `concurrency` open) and `more` (closed loop with
    `concurrency` streams) is given; `more(started, elapsed seconds)` is asked before each request. `on_end` sees each finished exchange (the warm-up's steadiness test)."""

    def __init__(
        self,
        target: Target,
        make: Callable[[int], bytes],
        concurrency: int,
        *,
        schedule: list[float] | None = None,
        more: Callable[[int, float], bool] | None = None,
        on_end: Callable[[Exchange], None] | None = None,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 900.0,
        stall_timeout_s: float = 300.0,
    ) -> None:
        if (schedule is None) == (more is None):
            raise ValueError("exactly one of schedule and more")
        self._target, self._make, self._concurrency = target, make, concurrency
        self._schedule, self._more, self._on_end = schedule, more, on_end
        self._connect_timeout = connect_timeout_s
        self._request_timeout, self._stall_timeout = int(request_timeout_s * NS), int(stall_timeout_s * NS)
        self._idle: list[Connection] = []
        self._open: dict[Connection, Exchange] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._ready: deque[bytes] = deque()
        self._built = self._started = self._failures = 0
        self._waiting: deque[tuple[int, int]] = deque()
        self._start = 0
        self._retry: dict[Connection, bytes] = {}
        self._settling = 0
        self._beats = 0
        self._beat_due = 0
        self._beating: asyncio.TimerHandle | None = None
        self._out = Outcome()
        self._sending = True
        self._finished: asyncio.Future[None] | None = None
        self._readers: Readers | None = None

    async def run(self, start_at_ns: int = 0) -> Outcome:
        """Drives to the end and returns. Never raises for what the server does."""
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        self._readers = Readers()
        self._out.asked_at = monotonic_ns()
        first = self._concurrency if self._schedule is None else min(self._concurrency, 64, len(self._schedule))
        self._build(min(first, 256))
        await self._prewarm(first)
        if start_at_ns:
            await asyncio.sleep(max(0.0, (start_at_ns - monotonic_ns()) / NS))
        cpu, wall = process_time(), monotonic_ns()
        self._start = start_at_ns or wall
        self._beat_due = wall
        self._beating = loop.call_later(BEAT_S, self._beat)
        try:
            if self._schedule is None:
                for _ in range(self._concurrency):
                    # A ramp: no stream of a closed loop is due before the one in front of it is on its way.
                    self._next(None, monotonic_ns())
            else:
                self._tick()
            self._maybe_finish()
            await self._finished
        finally:
            self._beating.cancel()
            self._out.cpu_s = process_time() - cpu
            self._out.wall_s = (monotonic_ns() - wall) / NS
            for connection in [*self._idle, *self._open]:
                connection.close()
            for task in self._opening:
                task.cancel()
            self._readers.close()
        return self._out

    async def _prewarm(self, count: int) -> None:
        """Opens connections before the window, in small groups (a listen queue is short). Failing to is found out on use."""
        opened = 0
        while opened < count:
            group = min(64, count - opened)
            results = await asyncio.gather(*(self._connect() for _ in range(group)), return_exceptions=True)
            self._idle += [result for result in results if isinstance(result, Connection)]
            if any(isinstance(result, BaseException) for result in results):
                return
            opened += group

    async def _connect(self) -> Connection:
        assert self._readers is not None
        return await connect(self._target.address, self._target.port, self._readers, self._ended, self._connect_timeout)

    # sending

    def _next(self, connection: Connection | None, due: int) -> bool:
        """Closed loop: starts the next request of a stream; False when the phase wants no more."""
        assert self._more is not None
        elapsed = (monotonic_ns() - self._start) / NS
        if not self._sending or not self._more(self._started, elapsed):
            self._stop_sending()
            return False
        self._launch(due, due, connection)
        return True

    def _tick(self) -> None:
        """Open loop: sends everything that is due, then sleeps until the next arrival."""
        assert self._schedule is not None
        loop = asyncio.get_running_loop()
        while self._sending and self._started + len(self._waiting) < len(self._schedule):
            due = self._start + int(self._schedule[self._started + len(self._waiting)] * NS)
            ahead = due - monotonic_ns()
            if ahead > 0:
                loop.call_later(max(0.001, ahead / NS), self._tick)
                return
            if len(self._open) + len(self._opening) < self._concurrency and not self._waiting:
                self._launch(due, due, None)
            else:
                self._waiting.append((due, due))
        if not self._waiting:
            self._stop_sending()
        self._maybe_finish()

    def _launch(self, scheduled: int, due: int, connection: Connection | None) -> None:
        exchange = Exchange(self._started, scheduled, due)
        self._started += 1
        self._out.exchanges.append(exchange)
        if not self._ready:
            self._build(1)
        self._dispatch(exchange, self._ready.popleft(), connection)

    def _dispatch(self, exchange: Exchange, data: bytes, connection: Connection | None) -> None:
        while (connection is None or not connection.alive) and self._idle:
            connection = self._idle.pop()
        if connection is None or not connection.alive:
            task = asyncio.ensure_future(self._dispatch_new(exchange, data))
            self._opening.add(task)
            task.add_done_callback(self._opened)
            return
        self._open[connection] = exchange
        if connection.served:
            self._retry[connection] = data
        connection.send(exchange, data)
        if not exchange.retried:
            self._out.lags_ns.append(exchange.sent - exchange.due)

    def _opened(self, task: "asyncio.Task[None]") -> None:
        """The exchange may have ended before this is called; then nobody else looks whether it was the last."""
        self._opening.discard(task)
        self._maybe_finish()

    async def _dispatch_new(self, exchange: Exchange, data: bytes) -> None:
        try:
            connection = await self._connect()
        except (OSError, TimeoutError) as error:
            exchange.ended = monotonic_ns()
            what = "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            exchange.error = f"could not connect: {what}"
            # Another turn of the loop, so that a server that is gone cannot make this recurse.
            asyncio.get_running_loop().call_later(0.02, self._unreachable, exchange)
            self._settling += 1
            return
        self._dispatch(exchange, data, connection)

    # ending

    def _ended(self, connection: Connection, exchange: Exchange) -> None:
        self._open.pop(connection, None)
        data = self._retry.pop(connection, None)
        if exchange.error and data is not None and not exchange.received and not exchange.retried:
            # A reused connection that died before any byte came back: the server had closed it while idle. Once more.
            exchange.retried, exchange.error, exchange.ended = 1, "", 0
            self._dispatch(exchange, data, None)
            return
        self._settle(connection if connection.alive else None, exchange)

    def _unreachable(self, exchange: Exchange) -> None:
        self._settling -= 1
        self._settle(None, exchange)

    def _settle(self, connection: Connection | None, exchange: Exchange) -> None:
        failed = bool(exchange.error) or exchange.status != 200
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= max(GIVE_UP_AFTER, 2 * self._concurrency) and self._sending:
            self._out.gave_up = f"{self._failures} requests failed one after another, last: {exchange.error or f'HTTP {exchange.status}'}"
            self._waiting.clear()
            self._stop_sending()
        if self._on_end is not None:
            self._on_end(exchange)
        if self._schedule is None:
            if not self._next(connection, exchange.ended) and connection is not None:
                self._idle.append(connection)
        else:
            if connection is not None:
                self._idle.append(connection)
            if self._waiting and self._sending:
                scheduled, _ = self._waiting.popleft()
                self._launch(scheduled, monotonic_ns(), None)
            if not self._waiting and self._started >= len(self._schedule):
                self._stop_sending()
        self._maybe_finish()

    def _stop_sending(self) -> None:
        if self._sending:
            self._sending = False
            self._out.stopped_sending = monotonic_ns()

    def _maybe_finish(self) -> None:
        idle = not self._sending and not self._open and not self._opening and not self._settling
        if idle and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    # housekeeping

    def _build(self, count: int) -> None:
        for _ in range(count):
            self._ready.append(self._make(self._built))
            self._built += 1

    def _beat(self) -> None:
        """Every 25 ms (a wake-up is not free): how late am I (a stall), prompts for later (a millisecond's worth), timeouts."""
        now = monotonic_ns()
        late = now - self._beat_due - int(BEAT_S * NS)
        self._out.stall_max_ns = max(self._out.stall_max_ns, late)
        limit = len(self._schedule) if self._schedule is not None else self._built + 1
        while self._sending and self._built < limit and len(self._ready) < 2 * self._concurrency and monotonic_ns() - now < BUILD_NS:
            self._build(1)
        self._beats += 1
        if self._beats % BEATS_A_SWEEP == 0:
            self._sweep(now)
        self._beat_due = monotonic_ns()
        self._beating = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _sweep(self, now: int) -> None:
        """Ends requests that are out of time."""
        for connection, exchange in list(self._open.items()):
            if now - exchange.sent > self._request_timeout:
                connection.abandon(f"timed out: not finished after {self._request_timeout / NS:g} s")
            elif now - exchange.heard > self._stall_timeout:
                connection.abandon(f"stalled: no byte for {self._stall_timeout / NS:g} s")
