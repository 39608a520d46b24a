"""One keep-alive HTTP/1.1 connection that stamps every arrival and keeps the bytes; nothing is decoded while it runs.

Light on purpose (standard library and httptools): the worker that imports it must send its first request at once."""

import asyncio
import select
import socket
from collections.abc import Callable
from time import monotonic_ns

import httptools

READ_BYTES = 1 << 16
# Streams read before the loop looks at its timers again: an open loop's next request must not wait for a whole decode batch.
READS_A_TURN = 64


class Exchange:
    """One request and all that came back, raw. Times are `time.monotonic_ns`; 0 means it never happened.

    `stamps[i]` is when the bytes of `bodies[i]` arrived, `received` when the response's head was whole. `error` is empty when the
    response was received whole."""

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

    @property
    def heard(self) -> int:
        """When something last happened on it: a piece of the body, the head, or the sending."""
        return max(self.sent, self.received, self.stamps[-1] if self.stamps else 0)


class Readers:
    """Every stream's socket in one epoll set, which the event loop watches as a whole: it wakes once for all streams that are
    ready, not once a stream, and costs a chunk what a bare reader does (`make bench-client`). Call inside a running loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._streams: dict[int, Connection] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._ready)
        self.lone: dict[int, bytes] = {}

    def add(self, connection: "Connection", fd: int) -> None:
        self._streams[fd] = connection
        self._epoll.register(fd, select.EPOLLIN)

    def wait_to_write(self, fd: int, wanted: bool) -> None:
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def remove(self, fd: int) -> None:
        if self._streams.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Idempotent; connections are closed by whoever opened them."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _ready(self) -> None:
        streams = self._streams
        for fd, events in self._epoll.poll(0, READS_A_TURN):
            # One that was closed by another's end in this very turn is gone.
            connection = streams.get(fd)
            if connection is None:
                continue
            if events & select.EPOLLOUT:
                connection.writable()
            if events != select.EPOLLOUT:
                connection.readable()


class Connection:
    """Carries one exchange at a time. `on_end(connection, exchange)` is called once for each exchange, whatever became of it.

    `sent` is taken before the system call that hands the first byte to the kernel. `alive` is False once the connection cannot
    carry another exchange. HTTP is httptools' business, but for one case that is nearly all of them: a piece that begins where a
    chunk ended and is exactly one whole chunk needs no parser, whose state is the same before and after it."""

    __slots__ = ("_between", "_complete", "_fd", "_keep", "_now", "_on_end", "_parser", "_readers", "_sock", "_unsent", "alive", "exchange", "served")  # fmt: skip

    def __init__(self, sock: socket.socket, readers: Readers, on_end: Callable[["Connection", Exchange], None]) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._readers = readers
        self._on_end = on_end
        self._parser = httptools.HttpResponseParser(self)
        self._unsent = b""
        self._now = 0
        self._between = False
        self._complete = False
        self._keep = False
        self.alive = True
        self.exchange: Exchange | None = None
        self.served = 0
        readers.add(self, self._fd)

    def send(self, exchange: Exchange, data: bytes) -> None:
        """Starts the exchange. `data` is the whole request. The end is reported through `on_end`, also for a failed write."""
        self.exchange = exchange
        self._between = False
        exchange.sent = monotonic_ns()
        try:
            written = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as error:
            self._end(f"write failed: {error.strerror or error}")
            return
        if written < len(data):
            self._unsent = data[written:]
            self._readers.wait_to_write(self._fd, True)

    def abandon(self, why: str) -> None:
        """Ends the exchange in flight (a timeout, an aborted phase) and closes the connection."""
        self._end(why)

    def close(self) -> None:
        """Idempotent."""
        self.alive = False
        if self._fd >= 0:
            self._readers.remove(self._fd)
            self._fd = -1
            self._sock.close()

    # what the socket is ready for

    def writable(self) -> None:
        try:
            written = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"write failed: {error.strerror or error}")
            return
        self._unsent = self._unsent[written:]
        if not self._unsent:
            self._readers.wait_to_write(self._fd, False)

    def readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost("reset by the server" if isinstance(error, ConnectionResetError) else f"read failed: {error.strerror or error}")
            return
        now = monotonic_ns()
        if self._between and self.exchange is not None:
            size = len(data)
            head = self._readers.lone.get(size) or self._lone(size)
            if data.startswith(head) and data.endswith(b"\r\n"):
                self.exchange.stamps.append(now)
                self.exchange.bodies.append(data[len(head) : -2])
                return
        self._now = now
        if data:
            self._parse(data)
        else:
            self._lost("connection closed before the response ended")

    def _lone(self, size: int) -> bytes:
        """How a piece of `size` bytes begins that is one whole chunk: its length in hex. Longer than the piece where no chunk is
        that long in all."""
        heads = (b"%x\r\n" % content for digits in range(1, 9) if (content := size - digits - 4) > 0)
        head = next((head for head in heads if len(head) + int(head, 16) + 2 == size), bytes(size + 1))
        self._readers.lone[size] = head
        return head

    def _parse(self, data: bytes) -> None:
        self._between = False
        try:
            self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - httptools raises several unrelated classes; each means a broken peer
            self._end(f"not HTTP: {type(error).__name__}: {error}"[:200])
            return
        if self._complete:
            self._complete = self._between = False
            if self._keep:
                self._end("")
            else:
                self.alive = False
                self._end("")
                self.close()
        elif self.exchange is None:
            self.close()
        elif not data.endswith(b"\r\n"):
            # A chunk has ended, but the next one's size has begun: a whole line of it would have been reported.
            self._between = False

    def _lost(self, why: str) -> None:
        self.alive = False
        if self.exchange is not None:
            self._end(why)
        else:
            self.close()

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

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self.exchange is None or self.exchange.status >= 200:
            self._complete = True
            # Only true to ask here: the parser forgets it with the message.
            self._keep = bool(self._parser.should_keep_alive()) and not self._unsent

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


async def connect(host: str, port: int, readers: Readers, on_end: Callable[[Connection, Exchange], None], timeout: float) -> Connection:
    """Opens a connection straight to the address (proxies of the environment play no part). Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.wait_for(loop.sock_connect(sock, (host, port)), timeout)
        return Connection(sock, readers, on_end)
    except BaseException:
        sock.close()
        raise


def resolve(host: str, port: int) -> str:
    """The first numeric address of a host name, looked up once, outside the measured window. Raises OSError."""
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
