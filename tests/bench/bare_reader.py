"""The floor of the comparison: a bare epoll reader in one process. No HTTP parser, no retries, no status: bytes and stamps.

`python -m tests.bench.bare_reader URL STREAMS SECONDS TOKENS` drives a closed loop and prints one JSON line; with a fifth
argument, a rate in requests a second, it follows a Poisson schedule instead (STREAMS is then the number of connections)."""

import json
import re
import select
import socket
import sys
from time import monotonic_ns, process_time
from urllib.parse import urlsplit

from runner.loadgen.arrivals import count_for, gamma_schedule
from runner.loadgen.bodies import request
from runner.loadgen.job import LengthRecipe
from runner.loadgen.prompts import PromptStream

COUNT = re.compile(rb'"completion_tokens":(\d+)')


class Stream:
    """One connection and the request on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.index = -1
        self.sent = 0
        self.pieces: list[tuple[int, bytes]] = []


def main(url: str, streams: int, seconds: float, tokens: int, rate: float | None) -> None:
    parts = urlsplit(url)
    prompts = PromptStream("0/", 4096, (0, 1, 2), LengthRecipe(value=64), LengthRecipe(value=tokens))
    connections = [Stream((parts.hostname or "", parts.port or 80)) for _ in range(streams)]
    by_fd = {stream.sock.fileno(): stream for stream in connections}
    epoll = select.epoll()
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    schedule = gamma_schedule(rate, 1.0, count_for(rate, seconds), 0) if rate else []
    bodies = [request(prompts(index), "generate", "m", parts.netloc) for index in range(len(schedule) or streams * 4)]
    finished: list[tuple[int, int, list[tuple[int, bytes]]]] = []
    lags: list[int] = []
    started, idle = 0, list(connections)
    cpu, begin = process_time(), monotonic_ns()

    def start(stream: Stream, due: int) -> None:
        nonlocal started
        data = bodies[started] if started < len(bodies) else request(prompts(started), "generate", "m", parts.netloc)
        stream.index, stream.pieces = started, []
        started += 1
        stream.sent = monotonic_ns()
        stream.sock.send(data)
        lags.append(stream.sent - due)

    def wanted() -> bool:
        return started < streams or monotonic_ns() - begin < seconds * 1e9

    if not schedule:
        while idle:
            start(idle.pop(), begin)
    open_count = streams if not schedule else 0
    while open_count or started < len(schedule):
        timeout = -1.0
        while started < len(schedule):
            due = begin + int(schedule[started] * 1e9)
            ahead = due - monotonic_ns()
            if ahead > 0 or not idle:
                timeout = max(0.0, ahead / 1e9)
                break
            start(idle.pop(), due)
            open_count += 1
        for fd, _ in epoll.poll(timeout):
            stream = by_fd[fd]
            data = stream.sock.recv(1 << 16)
            now = monotonic_ns()
            stream.pieces.append((now, data))
            if not data or data.endswith(b"0\r\n\r\n"):
                finished.append((stream.index, stream.sent, stream.pieces))
                if not schedule and data and wanted():
                    start(stream, now)
                else:
                    open_count -= 1
                    idle.append(stream)
    driven = process_time() - cpu
    requests = {}
    for index, sent, pieces in finished:
        times = [stamp for stamp, data in pieces for _ in COUNT.finditer(data)]
        requests[",".join(map(str, prompts(index).ids[:3]))] = [(time - sent) / 1e6 for time in times]
    print(json.dumps({"requests": requests, "cpu_s": driven, "lags_ms": [lag / 1e6 for lag in lags]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]) if len(sys.argv) > 5 else None)
