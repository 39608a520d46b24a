"""Response bodies: one sink a request, with everything that does not change built once.

A sink gets `push(count, finished)` for every pass that gave its request tokens, and writes at most once a pass. Shapes are those
of the recorded bodies (native stream: cumulative text and output_ids; OpenAI streams: deltas and a final usage chunk)."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner.engines.simulated.http import LAST_CHUNK, Connection, chunk
from runner.engines.simulated.outputs import Outputs
from runner.engines.simulated.scheduler import Job
from runner.engines.simulated.shapes import Version

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Wanted:
    """What the client asked for. `stop_at`: output length at which the model itself ends, None when that is ignored."""

    ids: list[int]
    output: int
    stop_at: int | None = None
    rid: str = ""
    logprobs: bool = False
    logprob_start: int = -1
    include_usage: bool = False
    continuous_usage: bool = False


@dataclass(frozen=True)
class Style:
    """How this server writes: by version and options."""

    version: Version
    model_name: str
    incremental: bool = False
    with_text: bool = True
    interval: int = 1
    with_metrics: bool = False
    cache_report: bool = False


class Base:
    """What all sinks share: the output so far, times, the finish reason."""

    def __init__(self, connection: Connection, wanted: Wanted, style: Style, outputs: Outputs, done: Callable[["Base"], None]) -> None:
        self.connection = connection
        self.wanted = wanted
        self.style = style
        self.outputs = outputs
        self.rid = wanted.rid or os.urandom(16).hex()
        self.received = time.time()
        self.arrived = time.monotonic()
        self.admitted = 0.0
        self.first = 0.0
        self.last = 0.0
        self.ids: list[int] = []
        self.started = False
        self.over = False
        self._done = done
        self._state = outputs.state(wanted.ids)

    def tokens(self, count: int) -> list[int]:
        position = len(self.ids)
        new = [self.outputs.token(self._state, position + offset) for offset in range(count)]
        self.ids += new
        self.last = time.monotonic()
        if not position:
            self.first = self.last
        return new

    def push(self, job: Job, count: int) -> None:
        """The request got `count` more tokens."""
        raise NotImplementedError

    def reason(self) -> dict[str, Any]:
        """SGLang's finish_reason."""
        if self.wanted.stop_at is not None and len(self.ids) >= self.wanted.stop_at:
            return {"type": "stop", "matched": 2}
        return {"type": "length", "length": self.wanted.output}

    def open(self) -> None:
        if not self.started:
            self.started = True
            self.connection.start_stream()

    def close(self) -> None:
        self.over = True
        self._done(self)

    def fail(self, status: int, message: str) -> None:
        if self.over:
            return
        error: dict[str, Any] = {"message": message}
        if self.style.version >= (0, 5, 23):
            error |= {"type": "InternalServerError", "code": 500, "retryable": True}
        body = json.dumps({"error": error}, separators=(",", ":")).encode()
        if self.started:
            self.connection.write(chunk(b"data: " + body + b"\n\n") + chunk(DONE) + LAST_CHUNK)
        else:
            self.connection.respond(status, body)
        self.close()

    def cut(self) -> None:
        if not self.over:
            self.over = True
            self.connection.drop()
            self._done(self)

    def meta(self, job: Job, finished: bool) -> dict[str, Any]:
        """The whole meta_info of one answer."""
        info: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.reason() if finished else None,
            "prompt_tokens": job.prompt,
            "weight_version": "default",
            ("num_retractions" if self.style.version >= (0, 5, 12) else "total_retractions"): job.retractions,
        }
        if self.style.with_metrics:
            info["queue_time"] = round(max(0.0, self.admitted - self.arrived), 6)
        info |= {"completion_tokens": len(self.ids), "cached_tokens": job.cached, "cached_tokens_details": None, "dp_rank": None}
        if self.wanted.logprobs:
            start = self.wanted.logprob_start
            rows = self.outputs.prompt_logprobs(self.wanted.ids) if start >= 0 else []
            info["input_token_logprobs"] = rows[start:] if start > 0 else rows
            info["output_token_logprobs"] = [
                [self.outputs.logprob(self._state + place), token, None] for place, token in enumerate(self.ids)
            ]
        if finished:
            info["e2e_latency"] = round(self.last - self.arrived, 6)
            if self.style.with_metrics:
                info["first_token_latency"] = round(self.first - self.arrived, 6)
                info["request_received_ts"] = self.received
        return info


class GenerateStream(Base):
    """/generate with stream: true."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._text = bytearray()
        self._list = bytearray()
        self._middle = b""
        self._tail = b""
        self._retractions = -1
        self._sent = 0

    def push(self, job: Job, count: int) -> None:
        if not self.started:
            self.open()
        style = self.style
        if style.incremental:
            self._text.clear()
            self._list.clear()
        for token in self.tokens(count):
            self._text += b" t%d" % token
            self._list += b"%d" % token if not self._list else b",%d" % token
        total = len(self.ids)
        finished = job.done
        if style.interval > 1 and not finished and total > 1 and total - self._sent < style.interval:
            return
        self._sent = total
        if finished or self.wanted.logprobs:
            meta = json.dumps(self.meta(job, finished), separators=(",", ":")).encode()
        else:
            if self._retractions != job.retractions:
                self._retractions = job.retractions
                before, _, after = json.dumps(self.meta(job, False), separators=(",", ":")).partition('"completion_tokens":')
                self._middle = before.encode() + b'"completion_tokens":'
                self._tail = b"," + after.partition(",")[2].encode()
            meta = b"%b%d%b" % (self._middle, total, self._tail)
        if style.with_text:
            data = b'data: {"text":"%b","output_ids":[%b],"meta_info":%b}\n\n' % (bytes(self._text), bytes(self._list), meta)
        else:
            data = b'data: {"output_ids":[%b],"meta_info":%b}\n\n' % (bytes(self._list), meta)
        if finished:
            self.connection.write(chunk(data) + chunk(DONE) + LAST_CHUNK)
            self.close()
        else:
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))


class GenerateWhole(Base):
    """/generate without stream. In a batch, `collect` takes the answer in the place of the connection."""

    collect: Callable[[dict[str, Any]], None] | None = None

    def push(self, job: Job, count: int) -> None:
        self.tokens(count)
        if not job.done:
            return
        answer: dict[str, Any] = {"text": "".join(f" t{token}" for token in self.ids)} if self.style.with_text else {}
        answer |= {"output_ids": self.ids, "meta_info": self.meta(job, True)}
        if self.collect is not None:
            self.collect(answer)
        else:
            self.connection.respond(200, json.dumps(answer, separators=(",", ":")).encode())
        self.close()


class OpenAiStream(Base):
    """/v1/completions and /v1/chat/completions with stream: true."""

    def __init__(self, *args: Any, chat: bool) -> None:
        super().__init__(*args)
        self._chat = chat
        kind = "chat.completion.chunk" if chat else "text_completion"
        name = json.dumps(self.style.model_name)
        self._head = f'data: {{"id":"{self.rid}","object":"{kind}","created":{int(self.received)},"model":{name},"choices":['.encode()

    def push(self, job: Job, count: int) -> None:
        self.open()
        first = not self.ids
        text = "".join(f" t{token}" for token in self.tokens(count)).encode()
        out = b""
        usage = json.dumps(self.usage(job), separators=(",", ":")).encode()
        each = usage if self.wanted.continuous_usage else b"null"
        finished = job.done
        ending = json.dumps(self.reason()["type"]).encode() if finished else b"null"
        if self._chat:
            if first:
                out += self._piece(b'"delta":{"reasoning_content":null,"role":"assistant","content":""}', b"null", b"")
            out += self._piece(
                b'"delta":{"reasoning_content":null,"content":"%b"}' % text, b"null", b',"usage":' + each if each != b"null" else b""
            )
            if finished:
                out += self._piece(b'"delta":{"reasoning_content":null}', ending, b"")
        else:
            out += self._piece(b'"text":"%b"' % text, ending, b',"usage":' + each)
        if finished:
            if self.wanted.include_usage:
                out += chunk(self._head + b'],"usage":' + usage + b"}\n\n")
            out += chunk(DONE) + LAST_CHUNK
        self.connection.write(out)
        if finished:
            self.close()

    def _piece(self, payload: bytes, ending: bytes, usage: bytes) -> bytes:
        return chunk(
            b'%b{"index":0,%b,"logprobs":null,"finish_reason":%b,"matched_stop":null}]%b}\n\n' % (self._head, payload, ending, usage)
        )

    def usage(self, job: Job) -> dict[str, Any]:
        return usage_of(job, len(self.ids), self.style)


class OpenAiWhole(Base):
    """The same without stream."""

    def __init__(self, *args: Any, chat: bool) -> None:
        super().__init__(*args)
        self._chat = chat

    def push(self, job: Job, count: int) -> None:
        self.tokens(count)
        if not job.done:
            return
        text = "".join(f" t{token}" for token in self.ids)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self.reason()["type"], "matched_stop": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        answer = {
            "id": self.rid,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(self.received),
            "model": self.style.model_name,
            "choices": [choice],
            "usage": usage_of(job, len(self.ids), self.style),
        }
        self.connection.respond(200, json.dumps(answer, separators=(",", ":")).encode())
        self.close()


def usage_of(job: Job, completion: int, style: Style) -> dict[str, Any]:
    """The usage object; cached tokens only with --enable-cache-report."""
    usage: dict[str, Any] = {"prompt_tokens": job.prompt, "total_tokens": job.prompt + completion, "completion_tokens": completion}
    if style.cache_report:
        usage["prompt_tokens_details"] = {"cached_tokens": job.cached}
    return usage | {"reasoning_tokens": 0}
