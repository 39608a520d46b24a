"""Reading responses: recorded bodies of real servers, bytes cut anywhere, and everything a server can do wrong."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.loadgen.protocol import Exchange
from runner.loadgen.streams import Stream, outcome, plain_counts, read_stream
from tests.loadgen.fake_server import event

FIXTURES = Path(__file__).parent.parent / "fixtures" / "loadgen"
DONE = b"data: [DONE]\n\n"


def exchange(pieces: list[bytes], stamps: list[int] | None = None, status: int = 200, error: str = "") -> Exchange:
    made = Exchange(0, 0, 0)
    made.status, made.error = status, error
    made.bodies = pieces
    made.stamps = stamps or [10 * (at + 1) for at in range(len(pieces))]
    return made


def read(pieces: list[bytes], route: str = "generate", stamps: list[int] | None = None) -> Stream:
    return read_stream(exchange(pieces, stamps), route)


def openai(delta: dict | None = None, text: str | None = None, usage: dict | None = None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "finish_reason": finish, **({"delta": delta} if delta is not None else {"text": text or ""})}
    return b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"


def closing(count: int, prompt: int = 5, cached: int | None = None) -> bytes:
    usage = {"completion_tokens": count, "prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("name", "route", "tokens", "prompt", "chunks"),
    [
        ("generate_stream.txt", "generate", 8, 6, 7),
        ("sse_generate.txt", "generate", 3, 6, 3),
        ("v1_completions_stream.txt", "completions", 5, 3, 5),
        ("sse_completions.txt", "completions", 8, 5, 8),
        ("v1_chat_stream.txt", "chat", 5, 20, 4),
        ("sse_chat.txt", "chat", 8, 10, 8),
    ],
)
def test_recorded_bodies(name: str, route: str, tokens: int, prompt: int, chunks: int) -> None:
    body = (FIXTURES / name).read_bytes()
    stream = read([part + b"\n\n" for part in body.split(b"\n\n") if part.strip()], route)
    assert stream.error == ""
    assert (stream.total, stream.prompt_tokens, len(stream.times)) == (tokens, prompt, chunks)
    if name != "sse_generate.txt":
        assert stream.done
        assert outcome(stream, tokens) == "completed"


@given(st.lists(st.integers(1, 4000), max_size=12), st.sampled_from(["generate_stream.txt", "v1_chat_stream.txt"]))
@settings(max_examples=60, deadline=None)
def test_bytes_may_be_cut_anywhere(cuts: list[int], name: str) -> None:
    body = (FIXTURES / name).read_bytes()
    route = "chat" if "chat" in name else "generate"
    edges = [0, *sorted({cut for cut in cuts if cut < len(body)}), len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]
    whole, cut = read([body], route), read(pieces, route)
    assert cut.tokens == whole.tokens
    assert cut.done
    # An event is there when its last byte is.
    assert all(stamp in [10 * (at + 1) for at in range(len(pieces))] for stamp in cut.times)


def test_an_event_split_over_two_pieces_has_the_time_of_the_second() -> None:
    first = event(1, 5)
    stream = read([first[:20], first[20:], event(2, 5, True) + DONE], stamps=[100, 200, 300])
    assert stream.times == [200, 300]


def test_crlf_borders_and_comments() -> None:
    body = (
        event(1, 5).replace(b"\n\n", b"\r\n\r\n")
        + b": ping\r\n\r\n"
        + event(2, 5, True).replace(b"\n\n", b"\r\n\r\n")
        + b"data: [DONE]\r\n\r\n"
    )
    cut = body.index(b"\r\n\r\n") + 1
    stream = read([body[:cut], body[cut:]])
    assert (stream.tokens, stream.done, stream.error) == ([1, 2], True, "")


def test_chunks_of_several_tokens_count_by_the_servers_number() -> None:
    stream = read([event(1, 5), event(4, 5), event(6, 5, True), DONE])
    assert stream.tokens == [1, 4, 6]


def test_incremental_ids_add_up() -> None:
    def part(ids: list[int], count: int, last: bool = False) -> bytes:
        meta = {"completion_tokens": count, "prompt_tokens": 3, "finish_reason": {"type": "length"} if last else None}
        return b"data: " + json.dumps({"text": "x", "output_ids": ids, "meta_info": meta}).encode() + b"\n\n"

    stream = read([part([1], 1), part([2], 2), part([3, 4], 4, True), DONE])
    assert (stream.tokens, stream.ids_received) == ([1, 2, 4], 4)
    assert outcome(stream, 4) == "completed"
    lost = read([part([1], 1), part([2], 2), part([4], 4, True), DONE])
    assert lost.ids_received is not None
    assert outcome(lost, 4) == "lost_tokens"


def test_an_empty_first_chunk_is_not_the_first_token() -> None:
    stream = read([event(0, 5), event(1, 5), event(2, 5, True), DONE], stamps=[1, 2, 3, 4])
    assert (stream.times, stream.empty_chunks) == ([2, 3], 1)


def test_role_only_prelude_and_reasoning_deltas() -> None:
    pieces = [
        openai(delta={"role": "assistant", "content": ""}, usage={"completion_tokens": 1}),
        openai(delta={"reasoning_content": "hm"}, usage={"completion_tokens": 1}),
        openai(delta={"content": " yes"}, usage={"completion_tokens": 3}),
        openai(delta={}, usage={"completion_tokens": 3}, finish="length"),
        closing(3, cached=2),
        DONE,
    ]
    stream = read(pieces, "chat", [1, 2, 3, 4, 5, 6])
    assert (stream.times, stream.tokens) == ([2, 3], [1, 3])
    assert (stream.reasoning_chunks, stream.cached_tokens, stream.counted) == (1, 2, True)
    assert outcome(stream, 3) == "completed"


def test_without_counts_the_closing_usage_is_the_truth_and_that_is_said() -> None:
    stream = read([openai(text="a"), openai(text="bc"), openai(finish="length"), closing(5), DONE], "completions")
    assert (stream.tokens, stream.counted) == ([1, 5], False)


@pytest.mark.parametrize(
    ("pieces", "word", "why"),
    [
        ([event(1, 5), b'data: {"error": {"message": "out of memory"}}\n\n', DONE], "failed", "out of memory"),
        ([event(1, 5), event(2, 5, True)], "truncated", ""),
        ([event(1, 5), b"data: {not json\n\n", DONE], "failed", "not JSON"),
        ([event(1, 5), b"data: [1]\n\n", DONE], "failed", "not an object"),
        ([event(1, 5), b'data: {"meta_info": {"completion_tokens": "x"}}\n\n', DONE], "failed", "unknown shape"),
        ([event(1, 5, finish_reason={"type": "stop"}), DONE], "stopped_early", ""),
        ([event(1, 5, finish_reason={"type": "abort", "message": "no room"}), DONE], "failed", "no room"),
        ([event(1, 5, finish_reason={"type": "stop", "matched": "NaN happened"}), DONE], "failed", "NaN"),
        ([event(1, 5), event(1, 5, True), DONE], "lost_tokens", ""),
        ([event(1, 5), event(2, 5, True, num_retractions=1), DONE], "retracted", ""),
        ([event(1, 5), event(2, 5, True, total_retractions=2), DONE], "retracted", ""),
        ([DONE], "stopped_early", ""),
        ([], "truncated", ""),
    ],
)
def test_what_becomes_of_a_request(pieces: list[bytes], word: str, why: str) -> None:
    stream = read(pieces)
    assert outcome(stream, 2) == word
    assert why in stream.error


def test_a_clock_that_goes_back_fails_the_request() -> None:
    stream = read([event(1, 5), event(2, 5, True), DONE], stamps=[30, 20, 40])
    assert outcome(stream, 2) == "failed"
    assert "clock" in stream.error


@pytest.mark.parametrize(
    ("name", "words"), [("generate_error_toolong.txt", "maximum context length"), ("generate_error_noinput.txt", "input_embeds")]
)
def test_http_errors_carry_the_servers_sentence(name: str, words: str) -> None:
    body = (FIXTURES / name).read_bytes().split(b"\n\n\n", 1)[-1]
    stream = read_stream(exchange([body[body.index(b"{") :]], status=400), "generate")
    assert stream.error.startswith("HTTP 400")
    assert words in stream.error


@given(st.text(max_size=30), st.lists(st.integers(1, 3), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_counting_without_decoding_gives_what_decoding_gives(text: str, steps: list[int]) -> None:
    """Middle chunks are not decoded; a text that quotes the very keys must not fool the count."""
    hostile = text + '"completion_tokens":99,"finish_reason":null "error" _retractions":5'
    counts, pieces = 0, []
    for at, step in enumerate(steps):
        counts += step
        meta = {"finish_reason": None if at < len(steps) - 1 else {"type": "length"}, "completion_tokens": counts, "num_retractions": 0}
        value = {"text": hostile, "output_ids": list(range(counts)), "meta_info": meta}
        pieces.append(b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n")
    stream = read([*pieces, DONE])
    expected = [sum(steps[: at + 1]) for at in range(len(steps))]
    assert (stream.tokens, stream.error, stream.ids_received) == (expected, "", counts)
    assert outcome(stream, counts) == "completed"


def middle(count: int, **more: object) -> bytes:
    value = {"text": "x", "meta_info": {"finish_reason": None, "completion_tokens": count, "num_retractions": 0}, **more}
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def test_middle_chunks_are_counted_all_at_once() -> None:
    assert plain_counts([middle(3), middle(4), middle(9)], 2) == [3, 4, 9]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [middle(3), middle(3)],
        [middle(2), middle(3)],
        [middle(3) + middle(4), middle(5)],
        [middle(3) + middle(4)[:20], middle(4)[20:]],
        [middle(3), b": ping\n\n"],
        [middle(3), b"data: {}\n\n", middle(5)],
        [middle(3), b"event: x\n" + middle(4)],
        [middle(3), middle(4).replace(b"null", b'{"type":"length"}')],
        [middle(3), middle(4).replace(b'retractions":0', b'retractions":1')],
        [middle(3, error="no")],
        [middle(3), b'data: {"a":1,"finish_reason":null}\n\n'],
        [middle(3).replace(b"\n\n", b"\r\n\r\n")],
    ],
)
def test_what_needs_a_look_is_not_counted_at_once(pieces: list[bytes]) -> None:
    assert plain_counts(pieces, 2) == []


def test_a_retraction_in_a_middle_chunk_is_seen() -> None:
    def part(count: int, retractions: int, last: bool = False) -> bytes:
        meta = {"finish_reason": {"type": "length"} if last else None, "completion_tokens": count, "num_retractions": retractions}
        return b"data: " + json.dumps({"text": "x", "meta_info": meta}, separators=(",", ":")).encode() + b"\n\n"

    stream = read([part(1, 0), part(2, 0), part(3, 1), part(4, 0, True), DONE])
    assert (stream.tokens, stream.retractions) == ([1, 2, 3, 4], 1)
