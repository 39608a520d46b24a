"""The protocol and the drive against a server that behaves, and one that does not."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable

import pytest
import uvloop

from runner.loadgen.bodies import request
from runner.loadgen.client import Drive, Outcome, Target
from runner.loadgen.job import LengthRecipe
from runner.loadgen.prompts import PromptStream
from runner.loadgen.protocol import Exchange
from runner.loadgen.streams import outcome, read_stream
from tests.loadgen.fake_server import FakeServer, Reply, Script, event, steady

TOKENS = 6


def drive(server: FakeServer, concurrency: int = 2, requests: int = 6, **more: object) -> Outcome:
    prompts = PromptStream("k", 500, (0,), LengthRecipe(value=16), LengthRecipe(value=TOKENS))
    target = Target.of(server.url)

    def make(index: int) -> bytes:
        return request(prompts(index), "generate", "m", target.host)

    async def run() -> Outcome:
        options: dict[str, object] = {"more": lambda started, _elapsed: started < requests} if "schedule" not in more else {}
        return await Drive(target, make, concurrency, **{**options, **more}).run()  # type: ignore[arg-type]

    return uvloop.run(asyncio.wait_for(run(), 20))


def words(driven: Outcome) -> list[str]:
    return [outcome(read_stream(exchange, "generate"), TOKENS) for exchange in driven.exchanges]


def errors(driven: Outcome) -> list[str]:
    return [read_stream(exchange, "generate").error for exchange in driven.exchanges]


def test_a_closed_loop_keeps_its_connections_and_its_concurrency() -> None:
    with FakeServer() as server:
        driven = drive(server, concurrency=3, requests=12)
        assert words(driven) == ["completed"] * 12
        assert server.connections == 3
        assert [len(body["input_ids"]) for body in server.bodies] == [16] * 12
    for exchange in driven.exchanges:
        assert exchange.scheduled <= exchange.sent <= exchange.stamps[0] <= exchange.ended
        assert exchange.stamps == sorted(exchange.stamps)
    moments = sorted([(e.sent, 1) for e in driven.exchanges] + [(e.ended, -1) for e in driven.exchanges])
    level, levels = 0, []
    for _, change in moments:
        level += change
        levels.append(level)
    assert max(levels) == 3


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeServer() as server:
        assert words(drive(server)) == ["completed"] * 6


def test_an_open_loop_follows_its_schedule_whatever_the_server_does() -> None:
    schedule = [0.0, 0.02, 0.04, 0.06, 0.2, 0.21]
    with FakeServer(steady(token_s=0.02)) as server:
        driven = drive(server, concurrency=10, schedule=schedule)
    start = driven.exchanges[0].scheduled
    assert [(e.scheduled - start) / 1e9 for e in driven.exchanges] == pytest.approx(schedule, abs=1e-6)
    late = [(e.sent - e.scheduled) / 1e9 for e in driven.exchanges]
    assert min(late) >= 0
    assert max(late) < 0.1
    # More were open at once than a closed loop of one: the schedule did not wait.
    assert driven.exchanges[1].sent < driven.exchanges[0].ended


def test_an_open_loop_at_its_limit_queues_and_says_so() -> None:
    with FakeServer(steady(token_s=0.01)) as server:
        driven = drive(server, concurrency=1, schedule=[0.0, 0.001, 0.002])
    assert words(driven) == ["completed"] * 3
    waits = [e.sent - e.scheduled for e in driven.exchanges]
    assert waits[2] > waits[1] > 30_000_000
    assert len(driven.lags_ns) == 3
    assert max(driven.lags_ns) < waits[1], "waiting for a free stream is queue wait, not the client's lag"


async def reset(reply: Reply) -> None:
    reply.head()
    await reply.chunk(event(1, 16))
    await asyncio.sleep(0.01)
    sock = reply.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reply.writer.transport.abort()
    reply.close = True


async def eof(reply: Reply) -> None:
    reply.head()
    await reply.chunk(event(1, 16))
    reply.writer.write_eof()
    reply.close = True


async def no_done(reply: Reply) -> None:
    reply.head()
    for count in range(1, TOKENS + 1):
        await reply.chunk(event(count, 16, count == TOKENS))
    await reply.end()


async def garbage(reply: Reply) -> None:
    reply.writer.write(b"this is not http\r\n\r\n")
    await reply.writer.drain()


async def garbage_between_chunks(reply: Reply) -> None:
    reply.head()
    for count in range(1, 4):
        await reply.chunk(event(count, 16))
        await asyncio.sleep(0.005)
    reply.writer.write(b"zz\r\nnot a chunk\r\n")
    await reply.writer.drain()


async def too_short_a_chunk(reply: Reply) -> None:
    """A whole piece whose announced length is not its own: what follows is no size line."""
    reply.head()
    await reply.chunk(event(1, 16))
    await asyncio.sleep(0.005)
    data = event(2, 16)
    reply.writer.write(f"{len(data) - 4:x}\r\n".encode() + data + b"\r\n")
    await reply.writer.drain()


async def refusal(reply: Reply) -> None:
    await reply.plain('{"error": {"message": "too long"}}', "400 Bad Request")


async def in_stream(reply: Reply) -> None:
    reply.head()
    await reply.chunk(event(1, 16) + b'data: {"error": {"message": "scheduler died"}}\n\n' + b"data: [DONE]\n\n")
    await reply.end()


@pytest.mark.parametrize(
    ("script", "word", "why"),
    [
        (reset, "failed", "reset by the server"),
        (eof, "failed", "closed before the response ended"),
        (no_done, "truncated", ""),
        (garbage, "failed", "not HTTP"),
        (garbage_between_chunks, "failed", "not HTTP"),
        (too_short_a_chunk, "failed", "not HTTP"),
        (refusal, "failed", "HTTP 400: too long"),
        (in_stream, "failed", "scheduler died"),
    ],
)
def test_broken_peers_are_outcomes(script: Script, word: str, why: str) -> None:
    with FakeServer(script) as server:
        driven = drive(server, requests=4)
    assert words(driven) == [word] * 4
    assert all(why in error for error in errors(driven))


def test_one_broken_request_does_not_touch_the_others() -> None:
    good = steady()

    async def third_breaks(reply: Reply) -> None:
        await (reset(reply) if reply.number == 2 else good(reply))

    with FakeServer(third_breaks) as server:
        driven = drive(server, requests=10)
    assert sorted(words(driven)) == ["completed"] * 9 + ["failed"]


def test_chunk_borders_and_slow_bytes_do_not_matter() -> None:
    async def dripping(reply: Reply) -> None:
        reply.head()
        body = b"".join(event(n, 16, n == TOKENS) for n in range(1, TOKENS + 1)) + b"data: [DONE]\n\n"
        wire = b"".join(f"{len(body[at : at + 37]):x}\r\n".encode() + body[at : at + 37] + b"\r\n" for at in range(0, len(body), 37))
        wire += b"0\r\n\r\n"
        for at in range(0, len(wire), 101):
            reply.writer.write(wire[at : at + 101])
            await asyncio.sleep(0.001)

    with FakeServer(dripping) as server:
        driven = drive(server, requests=4)
    assert words(driven) == ["completed"] * 4
    assert server.connections == 2


@pytest.mark.parametrize("shape", ["%x\r\n%b\r\n", "%X\r\n%b\r\n", "000%x\r\n%b\r\n", "%x;name=value\r\n%b\r\n", "%x\r\n%b\r\nhalf"])
def test_every_spelling_of_a_chunk_is_read(shape: str) -> None:
    """A piece that is one whole chunk is not shown to the parser; every other one is, and neither may confuse the other."""

    async def script(reply: Reply) -> None:
        reply.head()
        for count in range(1, TOKENS + 1):
            data = event(count, 16, count == TOKENS)
            if shape.endswith("half"):
                wire = b"%x\r\n%b\r\n" % (len(data), data)
                cut = (1, len(wire) - 1, 7)[count % 3]
                reply.writer.write(wire[:cut])
                await asyncio.sleep(0.003)
                reply.writer.write(wire[cut:])
            else:
                reply.writer.write(shape.encode() % (len(data), data))
            await asyncio.sleep(0.003)
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.end()

    with FakeServer(script) as server:
        driven = drive(server, requests=4)
        assert words(driven) == ["completed"] * 4
        assert server.connections == 2


def test_a_request_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    with FakeServer() as server:
        target = Target.of(server.url)
        prompts = PromptStream("k", 500, (0,), LengthRecipe(value=1_500_000), LengthRecipe(value=TOKENS), max_context=2_000_000)
        data = request(prompts(0), "generate", "m", target.host)

        async def run() -> Outcome:
            return await Drive(target, lambda _: data, 1, more=lambda started, _: started < 2).run()

        assert words(uvloop.run(asyncio.wait_for(run(), 20))) == ["completed"] * 2
        assert [len(body["input_ids"]) for body in server.bodies] == [1_500_000] * 2


def test_a_content_length_body_is_read_too() -> None:
    async def whole(reply: Reply) -> None:
        await reply.plain("".join(event(n, 16, n == TOKENS).decode() for n in range(1, TOKENS + 1)) + "data: [DONE]\n\n")

    with FakeServer(whole) as server:
        driven = drive(server)
        assert words(driven) == ["completed"] * 6
        assert server.connections == 2


def test_a_server_that_closes_idle_connections_costs_nothing() -> None:
    good = steady()

    async def close_after(reply: Reply) -> None:
        await good(reply)
        reply.close = True  # no Connection: close header: the client finds out when it writes

    with FakeServer(close_after) as server:
        driven = drive(server, requests=8)
    assert words(driven) == ["completed"] * 8


def test_connection_close_is_obeyed() -> None:
    async def closing(reply: Reply) -> None:
        body = "".join(event(n, 16, n == TOKENS).decode() for n in range(1, TOKENS + 1)) + "data: [DONE]\n\n"
        reply.writer.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        reply.close = True

    with FakeServer(closing) as server:
        driven = drive(server)
        assert words(driven) == ["completed"] * 6
        assert server.connections >= 6


@pytest.mark.parametrize(("options", "why"), [({"stall_timeout_s": 0.1}, "stalled"), ({"request_timeout_s": 0.1}, "timed out")])
def test_timeouts_end_requests(options: dict[str, float], why: str) -> None:
    async def hangs(reply: Reply) -> None:
        reply.head()
        await reply.chunk(event(1, 16))
        await asyncio.sleep(30)

    with FakeServer(hangs) as server:
        driven = drive(server, requests=2, **options)
    assert words(driven) == ["failed"] * 2
    assert all(why in error for error in errors(driven))


def test_a_slow_first_token_is_not_a_stall_of_another_request() -> None:
    with FakeServer(steady(first_s=0.05, token_s=0.03)) as server:
        driven = drive(server, requests=4, stall_timeout_s=0.15)
    assert words(driven) == ["completed"] * 4


def test_a_dead_server_is_given_up_soon() -> None:
    with FakeServer() as server:
        pass
    began = time.monotonic()
    driven = drive(server, concurrency=4, requests=1000)
    assert time.monotonic() - began < 5
    assert "failed one after another" in driven.gave_up
    assert len(driven.exchanges) < 40
    assert all("could not connect" in exchange.error for exchange in driven.exchanges)
    assert all(exchange.sent == 0 for exchange in driven.exchanges)


def test_a_server_that_dies_under_load_ends_the_drive() -> None:
    with FakeServer(steady(token_s=0.01)) as server:
        ends: list[Exchange] = []

        def on_end(exchange: Exchange) -> None:
            ends.append(exchange)
            if len(ends) == 4:
                server.stop()

        driven = drive(server, concurrency=2, requests=1000, on_end=on_end)
    found = words(driven)
    assert found.count("completed") >= 4
    assert "failed" in found
    assert driven.gave_up


@pytest.mark.parametrize("url", ["https://h:1", "h:1", "http://"])
def test_only_plain_http_urls(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        Target.of(url)


def test_exactly_one_way_of_arriving() -> None:
    make: Callable[[int], bytes] = lambda _: b""  # noqa: E731
    with pytest.raises(ValueError, match="exactly one"):
        Drive(Target("h", 1, "127.0.0.1", ""), make, 1)
