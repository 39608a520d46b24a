"""One keep-alive HTTP/1.1 connection that stamps every arrival and keeps the bytes; nothing is decoded while it runs.

Light on purpose (standard library and httptools): the worker that imports it must send its first request at once."""

import asyncio
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import cast

import httptools


class Exchange:
    """One request and all that came back, raw. Times are `time.monotonic_ns`; 0 means it never happened.

    `stamps[i]` is when the bytes of `bodies[i]` arrived. `error` is empty when the response was received whole."""

    __slots__ = ("bodies", "due", "ended", "error", "index", "received", "retried", "scheduled", "sent", "stamps", "status")

    def __init__(self, index: int, scheduled: int, due: int) -> None:
        self.index = index
        self.scheduled = scheduled
        self.due = due
        self.sent = 0
        self.ended = 0
        self.status = 0
        self.error = ""
        self.retried = 0
        self.received = 0
        self.stamps: list[int] = []
        self.bodies: list[bytes] = []


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. `on_end(connection, exchange)` is called once for each exchange, whatever became of it.

    `sent` is taken before the system call that hands the first byte to the kernel (the socket is written directly; the event
    loop would hold all writes of a turn back). `alive` is False once the connection cannot carry another exchange."""

    __slots__ = ("_complete", "_keep", "_now", "_on_end", "_parser", "_sock", "_transport", "alive", "exchange", "served")

    def __init__(self, sock: socket.socket, on_end: Callable[["Connection", Exchange], None]) -> None:
        self._sock = sock
        self._on_end = on_end
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._now = 0
        self._complete = False
        self._keep = False
        self.alive = True
        self.exchange: Exchange | None = None
        self.served = 0

    def send(self, exchange: Exchange, data: bytes) -> None:
        """Starts the exchange. `data` is the whole request. The end is reported through `on_end`, also for a failed write."""
        self.exchange = exchange
        exchange.sent = monotonic_ns()
        try:
            written = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as error:
            self._end(f"write failed: {error.strerror or error}")
            return
        if written < len(data) and self._transport is not None:
            self._transport.write(data[written:])

    def abandon(self, why: str) -> None:
        """Ends the exchange in flight (a timeout, an aborted phase) and closes the connection."""
        self._end(why)

    def close(self) -> None:
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = monotonic_ns()
        try:
            self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - httptools raises several unrelated classes; each means a broken peer
            self._end(f"not HTTP: {type(error).__name__}: {error}"[:200])
            return
        if self._complete:
            self._complete = False
            if self._keep:
                self._end("")
            else:
                self.alive = False
                self._end("")
                self.close()
        elif self.exchange is None:
            self.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        self._transport = None
        if self.exchange is not None:
            kind = "reset by the server" if isinstance(error, ConnectionResetError) else "connection closed before the response ended"
            self._end(kind)

    # httptools

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.status = self._parser.get_status_code()
            self.exchange.received = self._now

    def on_body(self, body: bytes) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.stamps.append(self._now)
            exchange.bodies.append(body)
            exchange.received = self._now

    def on_message_complete(self) -> None:
        if self.exchange is None or self.exchange.status >= 200:
            self._complete = True
            # Only true to ask here: the parser forgets it with the message.
            self._keep = bool(self._parser.should_keep_alive())

    def _end(self, error: str) -> None:
        exchange, self.exchange = self.exchange, None
        if error:
            self.close()
        if exchange is None:
            return
        exchange.ended = monotonic_ns()
        exchange.error = error
        self.served += 1
        self._on_end(self, exchange)


async def connect(host: str, port: int, on_end: Callable[[Connection, Exchange], None], timeout: float) -> Connection:
    """Opens a connection straight to the address (proxies of the environment play no part). Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.wait_for(loop.sock_connect(sock, (host, port)), timeout)
        _, protocol = await loop.create_connection(lambda: Connection(sock, on_end), sock=sock)
    except BaseException:
        sock.close()
        raise
    return protocol


def resolve(host: str, port: int) -> str:
    """The first numeric address of a host name, looked up once, outside the measured window. Raises OSError."""
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
