"""A small SSE server in a thread: speaks enough of /generate and the OpenAI routes, and misbehaves on request."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

Script = Callable[["Reply"], Awaitable[None]]


class Reply:
    """One request as a script sees it: `body` decoded, and the raw ways to answer."""

    def __init__(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter, number: int) -> None:
        self.path, self.body, self.writer, self.number = path, body, writer, number
        self.close = False

    @property
    def asked(self) -> int:
        sampling = self.body.get("sampling_params") or {}
        return int(sampling.get("max_new_tokens") or self.body.get("max_tokens") or 1)

    def head(self, status: str = "200 OK", length: int | None = None) -> None:
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self.writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def plain(self, text: str, status: str = "200 OK") -> None:
        self.head(status, len(text.encode()))
        self.writer.write(text.encode())
        await self.writer.drain()


def event(count: int, prompt: int, last: bool = False, cached: int = 0, **meta: Any) -> bytes:
    """A cumulative /generate event."""
    value = {
        "text": " a" * count,
        "output_ids": list(range(count)),
        "meta_info": {
            "finish_reason": {"type": "length"} if last else None,
            "prompt_tokens": prompt,
            "completion_tokens": count,
            "cached_tokens": cached,
            **meta,
        },
    }
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def steady(token_s: float = 0.002, first_s: float = 0.002) -> Script:
    """One token a chunk at a fixed pace."""

    async def script(reply: Reply) -> None:
        prompt = len(reply.body.get("input_ids") or []) or 7
        reply.head()
        loop = asyncio.get_running_loop()
        due = loop.time() + first_s
        for count in range(1, reply.asked + 1):
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += token_s
            await reply.chunk(event(count, prompt, count == reply.asked))
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.end()

    return script


class FakeServer:
    """`with FakeServer(script) as server`: `server.url`. `server.script` may be changed while it runs."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or steady()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.connections = 0
        self.running = 0
        self.flush_status = "200 OK"
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills the server: connections are reset."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512))
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
                raw = await reader.readexactly(length)
                body = json.loads(raw) if raw else {}
                reply = Reply(path, body, writer, len(self.bodies))
                self.paths.append(path)
                if path == "/flush_cache":
                    await reply.plain("Cache flushed.", self.flush_status)
                elif path == "/metrics":
                    await reply.plain(f'sglang:num_running_reqs{{tp_rank="0"}} {self.running}.0\nsglang:num_queue_reqs 1.0\n')
                else:
                    self.bodies.append(body)
                    self.running += 1
                    try:
                        await self.script(reply)
                    finally:
                        self.running -= 1
                if reply.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
