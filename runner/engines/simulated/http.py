"""HTTP/1.1 on the loop: a listening socket, keep-alive connections, chunked responses. Parsing is httptools'."""

import contextlib
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

from runner.engines.simulated.loop import Loop

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Request:
    """One request with its whole body. `path` has no query; `query` is the text after `?`."""

    method: str
    path: str
    query: str
    body: bytes
    peer: str


class Connection:
    """One client. `on_close` is called once when the client goes away in the middle of a response."""

    def __init__(self, loop: Loop, sock: socket.socket, peer: str, handle: Callable[["Connection", Request], None]) -> None:
        self._loop = loop
        self._sock = sock
        self._peer = peer
        self._handle = handle
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._out = bytearray()
        self._open = True
        self._closing = False
        self.on_close: Callable[[], None] | None = None
        loop.watch(sock.fileno(), select.EPOLLIN, self._ready)

    # httptools callbacks
    def on_message_begin(self) -> None:
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._url.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("latin-1")
        self._keep = bool(self._parser.should_keep_alive())
        self._handle(self, Request(method, path, query, b"".join(self._body), self._peer))

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                data = self._sock.recv(262144)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.drop()
                return
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserError:
                self.respond(400, b"Invalid HTTP request received.", "text/plain")
                self._closing = True
                self._flush()

    def write(self, data: bytes) -> None:
        """Sends at once what the kernel takes, the rest later."""
        if not self._open:
            return
        if self._out:
            self._out += data
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop()
            return
        if sent < len(data):
            self._out += data[sent:]
            self._loop.watch(self._sock.fileno(), select.EPOLLIN | select.EPOLLOUT, self._ready)

    def _flush(self) -> None:
        if self._open and self._out:
            try:
                sent = self._sock.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                self.drop()
                return
            del self._out[:sent]
        if self._open and not self._out:
            if self._closing:
                self.drop()
            else:
                self._loop.watch(self._sock.fileno(), select.EPOLLIN, self._ready)

    def respond(self, status: int, body: bytes = b"", kind: str = "application/json") -> None:
        """A whole response."""
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\n"
        if body:
            head += f"content-type: {kind}\r\n"
        self.write(head.encode() + b"\r\n" + body)

    def start_stream(self) -> None:
        """Headers of a server-sent event stream; pieces follow as `chunk` bytes."""
        self.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def end(self) -> None:
        """Closes after everything is sent."""
        self._closing = True
        self._flush()

    def drop(self) -> None:
        """Closes now."""
        if not self._open:
            return
        self._open = False
        self._loop.forget(self._sock.fileno())
        with contextlib.suppress(OSError):
            self._sock.close()
        callback, self.on_close = self.on_close, None
        if callback is not None:
            callback()


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class Listener:
    """The listening socket. Raises OSError when the port is taken."""

    def __init__(self, loop: Loop, host: str, port: int, handle: Callable[[Connection, Request], None]) -> None:
        self._loop = loop
        self._handle = handle
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._sock.bind((host, port))
            self._sock.listen(2048)
        except OSError:
            self._sock.close()
            raise
        self._sock.setblocking(False)
        loop.watch(self._sock.fileno(), select.EPOLLIN, self._accept)

    def _accept(self, _events: int) -> None:
        while True:
            try:
                sock, (host, port) = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Connection(self._loop, sock, f"{host}:{port}", self._handle)

    def close(self) -> None:
        self._loop.forget(self._sock.fileno())
        self._sock.close()
