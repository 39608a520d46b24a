"""A loopback SSE server of its own process that stamps every chunk: what a client's errors are measured against.

`python -m runner.loadgen.echo [--log PATH]` prints its port and serves until its standard input ends. One epoll loop, no
framework, and chunks that are spelled beforehand, so that it is not the limit. It speaks enough of /generate for this client and for
`sglang.bench_serving`. The text of an answer is `r` and the request's number in the log, seven digits; the log has lines of
{"n", "key", "received", "stamps"}, monotonic ns, where the key is the prompt's first three ids. `--token-ms 0` sends as fast as it can."""

import argparse
import heapq
import json
import os
import re
import select
import socket
import sys
from time import monotonic_ns

LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
WANTED = re.compile(rb'"max_(?:new_)?tokens"\s*:\s*(\d+)')
KEY = re.compile(rb'"input_ids"\s*:\s*\[(\d+),\s*(\d+),\s*(\d+)')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TAIL = b'","meta_info":{"id":"echo","finish_reason":%b,"prompt_tokens":64,"completion_tokens":%d,"cached_tokens":0}}\n\n\r\n'
# Between so many sends it looks for requests that have come: what it is late to see would be in every client's error.
SENDS_A_LOOK = 4
IDLE_NS = 2_000_000
NOTES_A_TURN = 8
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
INFO = {
    "model_path": "echo",
    "tokenizer_path": "echo",
    "served_model_name": "echo",
    "is_generation": True,
    "version": "echo",
    "internal_states": [{}],
    "max_total_num_tokens": 1 << 20,
}


class Answer:
    """One request being answered: `number` in the log, `name` in the chunks."""

    __slots__ = ("asked", "count", "key", "name", "number", "received", "sock", "stamps")

    def __init__(self, number: int, sock: socket.socket, asked: int, received: int, key: str) -> None:
        self.number, self.sock, self.asked, self.received, self.key = number, sock, asked, received, key
        self.name = b"%07d" % number
        self.count = 0
        self.stamps: list[int] = []


def chunk_parts(count: int, asked: int) -> tuple[bytes, bytes]:
    """What stands before and after the answer's name in its chunk number `count` of `asked`, framing and head included."""
    last = count == asked
    tail = TAIL % (b'{"type":"length","length":%d}' % asked if last else b"null", count)
    begin = b'data: {"text":"r'
    # The name's seven bytes count, the frame's last two do not.
    frame = b"%x\r\n" % (len(begin) + 7 + len(tail) - 2)
    return (HEAD if count == 1 else b"") + frame + begin, tail + (DONE if last else b"")


class Echo:
    """The server. `token_ns` between chunks (0: as fast as it can), `first_ns` before the first."""

    def __init__(self, token_ns: int, first_ns: int, log: str | None) -> None:
        self._token, self._first = token_ns, first_ns
        self._log = open(log, "w", encoding="utf-8", buffering=1 << 20) if log else None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(0, select.EPOLLIN | select.EPOLLHUP)
        self._peers: dict[int, tuple[socket.socket, bytearray]] = {}
        self._due: dict[int, list[Answer]] = {}
        self._ticks: list[int] = []
        self._done: list[Answer] = []
        self._parts: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._number = 0
        self._arrived = 0

    def run(self) -> None:
        """Serves until standard input ends."""
        while True:
            wait = -1.0 if not self._due else max(0.0, (self._ticks[0] - monotonic_ns()) / 1e9)
            # A wait under a millisecond is spun: epoll counts in whole ones.
            if not self._look(0 if 0 <= wait < 0.001 else wait) or not self._emit():
                self._note(len(self._done))
                return
            if not self._due or self._ticks[0] - monotonic_ns() > IDLE_NS:
                self._note(NOTES_A_TURN if self._due else len(self._done))

    def _look(self, wait: float) -> bool:
        """Takes what has arrived, waiting `wait` seconds for it (-1: for ever); False when standard input has ended."""
        ready = self._epoll.poll(wait)
        # Whatever is ready had arrived by now; the time to read one after the other is this server's own.
        self._arrived = monotonic_ns()
        for fd, _ in ready:
            if fd == 0:
                if not os.read(0, 4096):
                    return False
            elif fd == self._listener.fileno():
                self._accept()
            else:
                self._read(fd)
        return True

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock.fileno()] = (sock, bytearray())
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, fd: int) -> None:
        sock, buffer = self._peers[fd]
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(fd)
            del self._peers[fd]
            sock.close()
            return
        buffer += data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(buffer[:end])
            found = LENGTH.search(head)
            whole = end + 4 + (int(found.group(1)) if found else 0)
            if len(buffer) < whole:
                return
            body = bytes(buffer[end + 4 : whole])
            del buffer[:whole]
            self._answer(sock, head, body)

    def _answer(self, sock: socket.socket, head: bytes, body: bytes) -> None:
        received = self._arrived
        path = head.split(b" ", 2)[1]
        wanted = WANTED.search(body)
        if wanted is None or b"generate" not in path:
            text = json.dumps(INFO).encode() if b"info" in path or b"models" in path else b"ok"
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            return
        self._number += 1
        due = received + self._first
        if self._token:
            # All streams speak on one tick, as a decode batch does.
            due = -(-due // self._token) * self._token
        ids = KEY.search(body)
        key = b",".join(ids.groups()).decode() if ids else ""
        self._schedule(due, Answer(self._number, sock, int(wanted.group(1)), received, key))

    def _schedule(self, tick: int, answer: Answer) -> None:
        if tick not in self._due:
            self._due[tick] = []
            heapq.heappush(self._ticks, tick)
        self._due[tick].append(answer)

    def _note(self, count: int) -> None:
        """Writes up to `count` finished answers to the log: never while others wait for their chunk."""
        for answer in self._done[:count]:
            if self._log:
                line = {"n": answer.number, "key": answer.key, "received": answer.received, "stamps": answer.stamps}
                self._log.write(json.dumps(line, separators=(",", ":")) + "\n")
        del self._done[:count]
        if self._log and not self._due:
            self._log.flush()

    def _emit(self) -> bool:
        """Every answer that is due sends one chunk. False when standard input has ended meanwhile."""
        now = monotonic_ns()
        due = []
        while self._ticks and self._ticks[0] <= now:
            tick = heapq.heappop(self._ticks)
            due += [(tick, answer) for answer in self._due.pop(tick)]
        for number, (tick, answer) in enumerate(due):
            if number % SENDS_A_LOOK == SENDS_A_LOOK - 1 and not self._look(0):
                return False
            try:
                self._send(answer)
            except OSError:
                continue
            if answer.count < answer.asked:
                self._schedule(tick + self._token, answer)
            else:
                self._done.append(answer)
        return True

    def _send(self, answer: Answer) -> None:
        """Sends the next chunk. Raises OSError when the peer is gone."""
        answer.count += 1
        which = (answer.count, answer.asked)
        parts = self._parts.get(which)
        if parts is None:
            parts = self._parts[which] = chunk_parts(*which)
        framed = parts[0] + answer.name + parts[1]
        answer.stamps.append(monotonic_ns())
        try:
            sent = answer.sock.send(framed)
        except BlockingIOError:
            sent = 0
        if sent < len(framed):
            # A reader this slow is the limit itself: wait for it.
            answer.sock.setblocking(True)
            answer.sock.sendall(framed[sent:])
            answer.sock.setblocking(False)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--token-ms", type=float, default=10.0)
    parser.add_argument("--first-ms", type=float, default=20.0)
    parser.add_argument("--log", default=None)
    options = parser.parse_args(arguments)
    server = Echo(int(options.token_ms * 1e6), int(options.first_ms * 1e6), options.log)
    print(server.port, flush=True)
    server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
