"""What the event loop alone costs: this client with its HTTP parser taken out (a stamp and the bytes are kept, nothing else).

`python -m tests.bench.uvloop_floor URL STREAMS SECONDS TOKENS`: a closed loop; prints one JSON line with its CPU seconds. The
difference to the client's own figure is what parsing HTTP and reading the streams cost; the rest is the loop's and the kernel's."""

import json
import sys
from time import monotonic_ns

import uvloop

from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.protocol import Connection
from runner.loadgen.worker import drive


def stamp_only(self: Connection) -> None:
    exchange = self.exchange
    data = self._sock.recv(1 << 16)
    if exchange is None:
        return
    exchange.stamps.append(monotonic_ns())
    exchange.bodies.append(data)
    if data.endswith(b"0\r\n\r\n"):
        exchange.status = 200
        self._end("")


def main(url: str, streams: int, seconds: float, tokens: int) -> None:
    Connection.readable = stamp_only  # type: ignore[method-assign]
    recipe = {"input": LengthRecipe(value=64), "output": LengthRecipe(value=tokens)}
    answer = uvloop.run(drive(Job(url=url, concurrency=streams, seconds=seconds, rounds=1, **recipe)))
    print(json.dumps({"cpu_s": answer["cpu_s"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
