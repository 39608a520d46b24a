"""From the raw bytes of one response to arrays: when tokens came and how many the server said there were.

Runs after the measured window (standard library only, in the worker). Times are monotonic nanoseconds. Formats: `/generate`
(text and ids cumulative, or increments), `/v1/completions`, `/v1/chat/completions`, as recorded from SGLang 0.5.15 and 0.5.23."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import gt, lt
from typing import Any

from runner.loadgen.protocol import Exchange

COMPLETED, FAILED, STOPPED_EARLY = "completed", "failed", "stopped_early"
TRUNCATED, LOST_TOKENS, RETRACTED = "truncated", "lost_tokens", "retracted"
COUNT = re.compile(rb'"completion_tokens":(\d+)[,}]')
DONE = b"data: [DONE]\n\n"
COUNT_OF_EVENT = re.compile(rb'"completion_tokens":(\d+)[,}][^\n]*\n\n')
OUTCOMES = (COMPLETED, FAILED, STOPPED_EARLY, TRUNCATED, LOST_TOKENS, RETRACTED)


@dataclass
class Stream:
    """One response, read. `times[i]` is when the chunk with new tokens number i was whole; `tokens[i]` is the server's
    cumulative count then. `counted` is False where the server gave no count with its chunks (then one a chunk is assumed
    and only the last value is the server's)."""

    times: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    retractions: int = 0
    finish_reason: str = ""
    error: str = ""
    done: bool = False
    counted: bool = True
    ids_received: int | None = None
    reasoning_chunks: int = 0
    empty_chunks: int = 0

    @property
    def total(self) -> int:
        """Output tokens by the server's own count."""
        return self.tokens[-1] if self.tokens else 0


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole events' payloads in `data`, and the bytes of the one that has begun."""
    if b"\r" in data:
        if data.endswith(b"\r"):
            return [], data
        data = data.replace(b"\r\n", b"\n")
    *whole, rest = data.split(b"\n\n")
    return [payload for payload in map(_payload, whole) if payload], rest


def _payload(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def read_stream(exchange: Exchange, route: str) -> Stream:
    """Reads one response. Never raises for what a server sent: trouble is in `error` (and in `done` False).

    An event's time is the arrival of the piece that completed it, however the bytes were cut. Comments and fields other than
    `data` are skipped; an unfinished event at the end is not an event."""
    stream = Stream(error=exchange.error)
    if exchange.status != 200:
        if not stream.error:
            stream.error = f"HTTP {exchange.status}: {_message(b''.join(exchange.bodies))}"
        return stream
    stamps, bodies = exchange.stamps, exchange.bodies
    if any(map(gt, stamps, stamps[1:])):
        stream.error = stream.error or "the clock went backwards"
    rest, quick, tried, at = b"", False, False, 0
    times, tokens = stream.times, stream.tokens
    while at < len(bodies):
        if quick and not rest and not tried:
            tried = True
            # The last event says why it ended; [DONE] comes with it or in a piece of its own.
            if counts := plain_counts(bodies[at : -2 if bodies[-1] == DONE else -1], tokens[-1]):
                times += stamps[at : at + len(counts)]
                tokens += counts
                at += len(counts)
                continue
        stamp, piece = stamps[at], bodies[at]
        at += 1
        # What nearly every piece is: one whole event in the middle of the stream.
        if quick and not rest and piece.startswith(b"data: {") and piece.find(b"\n") == len(piece) - 2 and (count := _plain_count(piece)):
            if count > tokens[-1]:
                times.append(stamp)
                tokens.append(count)
            else:
                stream.empty_chunks += 1
            continue
        payloads, rest = _cut(rest + piece)
        for payload in payloads:
            quick = _take(stream, payload, stamp, route)
    return stream


def _take(stream: Stream, payload: bytes, stamp: int, route: str) -> bool:
    """Reads one event. True when the middle chunks that follow may be counted without decoding: from the second chunk on it is
    known whether ids are cumulative (or absent), and then only the last chunk's ids matter."""
    if payload == b"[DONE]":
        stream.done = True
        return False
    try:
        chunk = json.loads(payload)
    except ValueError:
        stream.error = stream.error or f"a chunk is not JSON: {payload[:80]!r}"
        return False
    if not isinstance(chunk, dict):
        stream.error = stream.error or f"a chunk is not an object: {payload[:80]!r}"
        return False
    if chunk.get("error") or chunk.get("object") == "error":
        stream.error = stream.error or f"error in the stream: {_message(payload)}"
        return False
    try:
        (_take_generate if route == "generate" else _take_openai)(stream, chunk, stamp)
    except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:
        stream.error = stream.error or f"a chunk has an unknown shape ({type(error).__name__}): {payload[:80]!r}"
        return False
    known = stream.counted and len(stream.times) > 1 and stream.ids_received in (None, stream.total)
    return route == "generate" and known and cumulative(chunk)


def cumulative(chunk: dict[str, Any]) -> bool:
    """Does a /generate chunk carry all ids so far (or none at all)?"""
    ids = chunk.get("output_ids")
    return ids is None or len(ids) == (chunk.get("meta_info") or {}).get("completion_tokens")


def plain_counts(pieces: Sequence[bytes], before: int) -> list[int]:
    """The cumulative token counts of neighbouring middle chunks of /generate, read all at once (a look at each costs four times as
    much); [] unless every piece is one whole event, none needs a look, and the counts rise from `before`.

    As exact as `_plain_count`: there are as many line ends and event ends as such pieces have, every piece ends an event, and
    what is searched for is a quoted key. A match runs to the end of its event, so as many matches as events is one in each."""
    joined, number = b"".join(pieces), len(pieces)
    plain = (
        joined.startswith(b"data: {")
        and joined.count(b"\n\ndata: {") == number - 1
        and joined.count(b"\n") == 2 * number
        and [piece[-2:] for piece in pieces].count(b"\n\n") == number
        and joined.count(b'"finish_reason":null') == number == joined.count(b'"finish_reason":')
        and joined.count(b'_retractions":') == joined.count(b'_retractions":0')
        and b'"error"' not in joined
    )
    counts = list(map(int, COUNT_OF_EVENT.findall(joined))) if plain else []
    return counts if counts and len(counts) == number and counts[0] > before and all(map(lt, counts, counts[1:])) else []


def _plain_count(payload: bytes) -> int:
    """The token count of a middle chunk of /generate, without decoding it; 0 when anything in it needs a look.

    Exact, not a guess: a quote inside a JSON string is escaped, so the bytes of a quoted key with its colon occur as a key only."""
    found = COUNT.search(payload)
    if found is None or b'"finish_reason":null' not in payload or b'"error"' in payload:
        return 0
    if b'_retractions":' in payload and b'_retractions":0' not in payload:
        return 0
    return int(found[1])


def _take_generate(stream: Stream, chunk: dict[str, Any], stamp: int) -> None:
    meta = chunk.get("meta_info") or {}
    _finish(stream, meta.get("finish_reason"))
    _usage(stream, meta)
    stream.retractions = max(stream.retractions, int(meta.get("num_retractions") or meta.get("total_retractions") or 0))
    count = meta.get("completion_tokens")
    if count is None:
        stream.counted = False
        count = stream.total + (1 if chunk.get("text") or chunk.get("output_ids") else 0)
    new = _advance(stream, int(count), stamp)
    ids = chunk.get("output_ids")
    if isinstance(ids, list):
        # Cumulative servers send all ids each time, incremental ones only the new ones; the counts tell which this is.
        before = stream.ids_received or 0
        stream.ids_received = before + len(ids) if new and before and len(ids) == new < int(count) else max(before, len(ids))


def _take_openai(stream: Stream, chunk: dict[str, Any], stamp: int) -> None:
    content = False
    for choice in chunk.get("choices") or []:
        _finish(stream, choice.get("finish_reason"))
        delta = choice.get("delta")
        if delta is not None:
            reasoning = bool(delta.get("reasoning_content"))
            stream.reasoning_chunks += reasoning
            content = content or reasoning or bool(delta.get("content")) or bool(delta.get("tool_calls"))
        else:
            content = content or bool(choice.get("text"))
    usage = chunk.get("usage")
    if usage:
        _usage(stream, usage)
        count = usage.get("completion_tokens")
        if count is not None:
            if not chunk.get("choices"):
                _settle(stream, int(count))
            else:
                # The role-only prelude may carry a count already; tokens without content are not yet with the client.
                _advance(stream, int(count) if content or stream.tokens else 0, stamp)
            return
    if content:
        stream.counted = False
        _advance(stream, stream.total + 1, stamp)
    else:
        stream.empty_chunks += 1


def _advance(stream: Stream, count: int, stamp: int) -> int:
    """Notes the new cumulative count; returns how many tokens are new. Counts never go down (a retraction resends)."""
    new = count - stream.total
    if new <= 0:
        stream.empty_chunks += 1
        return 0
    stream.times.append(stamp)
    stream.tokens.append(count)
    return new


def _settle(stream: Stream, count: int) -> None:
    """The closing usage chunk has the true total: the last chunk's count becomes it, no time is added."""
    if stream.tokens and count != stream.tokens[-1]:
        stream.tokens[-1] = max(count, stream.tokens[-2] if len(stream.tokens) > 1 else 0)


def _usage(stream: Stream, usage: dict[str, Any]) -> None:
    if usage.get("prompt_tokens") is not None:
        stream.prompt_tokens = int(usage["prompt_tokens"])
    details = usage.get("prompt_tokens_details") or {}
    cached = usage.get("cached_tokens", details.get("cached_tokens"))
    if cached is not None:
        stream.cached_tokens = int(cached)


def _finish(stream: Stream, reason: Any) -> None:
    if not reason:
        return
    kind, matched, message = (
        (reason.get("type", ""), reason.get("matched"), reason.get("message", "")) if isinstance(reason, dict) else (reason, None, "")
    )
    stream.finish_reason = str(kind)
    if "NaN happened" in f"{matched} {message} {kind}":
        stream.error = stream.error or "NaN happened"
    elif kind == "abort":
        stream.error = stream.error or f"aborted by the server: {message}"[:200]


def outcome(stream: Stream, asked: int) -> str:
    """What became of a request that asked for `asked` tokens; exactly one word. Failed before truncated, before stopped early,
    before lost tokens (fewer received than counted or asked), before retracted."""
    if stream.error:
        return FAILED
    if not stream.done:
        return TRUNCATED
    if stream.total < asked and stream.finish_reason != "length":
        return STOPPED_EARLY
    if stream.total != asked or (stream.ids_received is not None and stream.ids_received < stream.total):
        return LOST_TOKENS
    return RETRACTED if stream.retractions else COMPLETED


def _message(content: bytes) -> str:
    """The human part of an error body, at most 200 characters."""
    try:
        value = json.loads(content)
    except ValueError:
        return content[:200].decode(errors="replace")
    inner = value.get("error", value) if isinstance(value, dict) else value
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(text)[:200]
