"""The HTTP of a live simulated server, held against bodies recorded from real ones."""

import gzip
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from runner.engines.base import Server
from runner.engines.simulated.engine import SimulatedEngine
from tests.engines.simulated.support import PlainOwner, order_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = FIXTURES / "loadgen"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    owner = PlainOwner()
    try:
        options = {"enable-metrics": True, "enable-cache-report": True, "max-running-requests": 32, "enable-mscclpp": True}
        order = order_of(tmp_path_factory.mktemp("server"), version="0.5.15.post1", options=options, simulation={"time_scale": 0.02})
        server = SimulatedEngine(order.engine).start(order, owner)
        server.wait_ready()
        yield server
    finally:
        owner.close()


def generate(server: Server, ids: list[int], tokens: int = 4, **more: Any) -> requests.Response:
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}, **more}
    return requests.post(f"{server.url}/generate", json=body, timeout=10)


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_native_stream_is_cumulative_and_has_the_recorded_shape(server: Server) -> None:
    answer = generate(server, [7, 8, 9, 10, 11, 12], tokens=3, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    got, real = events(answer.text), events((RECORDED / "sse_generate.txt").read_text() + "data: [DONE]\n")  # cut after 3 chunks
    assert len(got) == len(real) == 3
    assert [event["meta_info"]["completion_tokens"] for event in got] == [1, 2, 3]
    assert [len(event["output_ids"]) for event in got] == [1, 2, 3]
    assert got[1]["text"].startswith(got[0]["text"])
    assert set(real[0]) == set(got[0])
    missing = set(real[0]["meta_info"]) - set(got[0]["meta_info"])
    assert missing <= {"reasoning_tokens", "response_sent_to_client_ts"}
    assert got[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert got[0]["meta_info"]["prompt_tokens"] == 6


@pytest.mark.parametrize(("route", "fixture"), [("completions", "sse_completions.txt"), ("chat/completions", "sse_chat.txt")])
def test_openai_streams_have_the_recorded_shape(server: Server, route: str, fixture: str) -> None:
    prompt = {"prompt": [5, 6, 7, 8, 9]} if route == "completions" else {"messages": [{"role": "user", "content": "tell me"}]}
    body = {**prompt, "model": "x", "max_tokens": 8, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    got = events(requests.post(f"{server.url}/v1/{route}", json=body, timeout=10).text)
    real = events((RECORDED / fixture).read_text())
    for mine, theirs in ((got[0], real[0]), (got[-2], real[-2]), (got[-1], real[-1])):
        assert set(mine) == set(theirs)
        if theirs["choices"]:
            assert set(mine["choices"][0]) == set(theirs["choices"][0])
    assert got[-2]["choices"][0]["finish_reason"] == "length"
    assert got[-1]["usage"]["completion_tokens"] == 8
    assert got[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_whole_answers_carry_log_probabilities(server: Server) -> None:
    answer = generate(server, [100, 101, 102, 103], return_logprob=True, logprob_start_len=0).json()
    rows = answer["meta_info"]["input_token_logprobs"]
    assert [row[1] for row in rows] == [100, 101, 102, 103]
    assert rows[0][0] is None
    assert all(row[0] <= 0.05 and row[2] is None for row in rows[1:])
    assert len(answer["output_ids"]) == 4


def test_the_same_prompt_says_the_same_and_its_log_probabilities_jitter_a_little(server: Server) -> None:
    one, two = (generate(server, [200, 201, 202], return_logprob=True, logprob_start_len=0).json() for _ in range(2))
    assert one["output_ids"] == two["output_ids"]
    pairs = [(row[0], other[0]) for row, other in zip(*(each["meta_info"]["input_token_logprobs"][1:] for each in (one, two)), strict=True)]
    assert all(abs(mine - theirs) < 0.02 for mine, theirs in pairs)
    assert generate(server, [200, 201, 203]).json()["output_ids"] != one["output_ids"]


def test_a_batch_is_answered_as_a_list(server: Server) -> None:
    body = {"input_ids": [[1, 2, 3], [4, 5, 6, 7]], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    answers = requests.post(f"{server.url}/generate", json=body, timeout=10).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [3, 4]


def test_cached_tokens_are_told_and_flushed(server: Server) -> None:
    ids = list(range(3000, 3100))
    assert generate(server, ids).json()["meta_info"]["cached_tokens"] == 0
    assert generate(server, ids).json()["meta_info"]["cached_tokens"] == 96
    assert server.reset()
    assert generate(server, ids).json()["meta_info"]["cached_tokens"] == 0


def test_errors_have_the_real_ones_form(server: Server) -> None:
    for body, words in (
        ("{broken", "json_invalid"),
        (json.dumps({"stream": True}), "Either text, input_ids or input_embeds should be provided."),
        (json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 99999}}), "exceeds the model's maximum context length"),
    ):
        answer = requests.post(f"{server.url}/generate", data=body, timeout=10)
        assert answer.status_code == 400
        assert words in answer.text
    assert requests.get(f"{server.url}/nothing", timeout=10).status_code == 404


def test_information_routes(server: Server) -> None:
    info = requests.get(f"{server.url}/server_info", timeout=10).json()
    assert info["version"] == "0.5.15.post1"
    assert info["enable_mscclpp"] is True, "intent is shown, effect or not"
    assert info["tp_size"] == 8
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == info["max_total_num_tokens"]
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 32
    assert requests.get(f"{server.url}/get_server_info", timeout=10).json().keys() == info.keys()
    real = set(json.loads((FIXTURES / "h200" / "base1.server_info.json").read_text()))
    assert {key for key in real - set(info) if not key.startswith("_")} == set()
    assert requests.get(f"{server.url}/model_info", timeout=10).json()["architectures"] == ["GlmMoeDsaForCausalLM"]
    assert requests.get(f"{server.url}/v1/models", timeout=10).json()["data"][0]["id"] == "/models/glm5"


def test_metrics_count_and_have_sglangs_names(server: Server) -> None:
    def value(name: str) -> float:
        found = re.search(rf"^sglang:{name}(?:\{{.*\}})? (\S+)$", server.metrics(), re.MULTILINE)
        assert found, name
        return float(found[1])

    before = {name: value(name) for name in ("num_requests_total", "generation_tokens_total", "prompt_tokens_total")}
    generate(server, list(range(9000, 9032)), tokens=5)
    assert value("num_requests_total") == before["num_requests_total"] + 1
    assert value("generation_tokens_total") == before["generation_tokens_total"] + 5
    assert value("prompt_tokens_total") == before["prompt_tokens_total"] + 32
    real = set(re.findall(r"# TYPE (sglang:\S+)", (FIXTURES / "h200" / "base1.metrics.txt").read_text()))
    invented = set(re.findall(r"# TYPE (sglang:\S+)", server.metrics())) - real
    assert invented <= {"sglang:num_aborted_requests_total", "sglang:num_retracted_requests_total"}, "both exist from other runs' notes"


def test_an_aborted_stream_ends_and_frees_its_place(server: Server) -> None:
    ended = threading.Event()

    def read() -> None:
        generate(server, [1, 2, 3], tokens=5000, stream=True, rid="long-one")
        ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    end = time.monotonic() + 5
    while requests.get(f"{server.url}/v1/loads", timeout=5).json()["loads"][0]["num_running_reqs"] == 0:
        assert time.monotonic() < end
    assert requests.post(f"{server.url}/flush_cache", timeout=5).status_code == 400
    requests.post(f"{server.url}/abort_request", json={"rid": "long-one"}, timeout=5)
    assert ended.wait(5)
    assert requests.post(f"{server.url}/flush_cache", timeout=5).status_code == 200


def test_a_profile_shows_the_kernels_in_force_and_no_others(server: Server, tmp_path: Path) -> None:
    requests.post(f"{server.url}/start_profile", json={"output_dir": str(tmp_path), "num_steps": 3}, timeout=5)
    generate(server, [4, 4, 4], tokens=6)
    requests.post(f"{server.url}/stop_profile", timeout=5)
    (trace,) = tmp_path.glob("*.trace.json.gz")
    names = {event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert any("ncclDevKernel_AllReduce" in name for name in names)
    assert not any("mscclpp" in name for name in names), "the flag is on, its module is not there"


def test_requests_beyond_the_limit_wait_and_all_are_served(server: Server) -> None:
    answers: list[int] = []

    def one(place: int) -> None:
        answers.append(len(generate(server, [place, 5, 6], tokens=8).json()["output_ids"]))

    threads = [threading.Thread(target=one, args=(place,)) for place in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == [8] * 48


def test_the_log_speaks_sglangs_language(server: Server) -> None:
    log = server.log.read_text()
    order = [
        "server_args=ServerArgs(",
        "Init torch distributed begin.",
        "Load weight begin.",
        "Load weight end. elapsed=",
        "KV Cache is allocated.",
        "Capture target decode CUDA graph begin.",
        "max_total_num_tokens=",
        "Uvicorn running on",
        "The server is fired up and ready to roll!",
    ]
    places = [log.index(words) for words in order]
    assert places == sorted(places)
    assert re.search(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d TP7\] Load weight end", log, re.MULTILINE)
    assert "mscclpp" not in log.replace("enable_mscclpp=True", ""), "0.5.15 says nothing about a missing module"
    assert log.startswith("SIMULATED engine")
