"""Prompts and arrivals: exact lengths, no special ids, no repeats, seeded, the right distributions and the exact rate."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.loadgen.arrivals import count_for, gamma_schedule, trace_schedule
from runner.loadgen.bodies import PATHS, body, encode, request
from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.prompts import Prompt, PromptStream, draw_length, usable_ids


def stream(key: str = "7/a", length: int = 64, **more: object) -> PromptStream:
    fields: dict[str, object] = {"vocab_size": 500, "special": (0, 1, 2, 499), **more}
    return PromptStream(key, input=fields.pop("input", LengthRecipe(value=length)), output=LengthRecipe(value=8), **fields)  # type: ignore[arg-type]


@given(st.integers(1, 300), st.integers(0, 10_000))
def test_lengths_are_exact_and_special_ids_never_occur(length: int, index: int) -> None:
    ids = stream(length=length)(index).ids
    assert len(ids) == length
    assert not {0, 1, 2, 499} & set(ids)
    assert max(ids) < 500


def test_no_prompt_is_sent_twice_and_heads_differ() -> None:
    prompts = [stream(length=8)(index).ids for index in range(3000)]
    assert len(set(prompts)) == 3000
    # No two of the first 496 share even their first token: nothing for a prefix cache to find.
    assert len({ids[0] for ids in prompts[:496]}) == 496


def test_seeded_and_different_between_streams() -> None:
    assert stream()(3) == stream()(3)
    assert stream()(3).ids != stream(key="7/b")(3).ids
    assert stream()(3).ids != stream(key="8/a")(3).ids


def test_ids_cover_the_vocabulary_evenly() -> None:
    ids = np.concatenate([stream(length=500)(index).ids for index in range(200)])
    counts = np.bincount(ids, minlength=500)[3:499]
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2 < 495 + 5 * np.sqrt(2 * 495)


def test_shared_prefixes_by_group() -> None:
    grouped = stream(length=32, shared_prefix=20, prefix_groups=3)
    prompts = [grouped(index) for index in range(9)]
    assert {len(p.ids) for p in prompts} == {32}
    assert prompts[0].ids[:20] == prompts[3].ids[:20] != prompts[1].ids[:20]
    assert len({p.ids[20:] for p in prompts}) == 9
    assert len(stream(length=10, shared_prefix=20)(0).ids) == 10


def test_length_distributions() -> None:
    draw = random.Random(1)
    uniform = [draw_length(LengthRecipe("uniform", low=5, high=15), draw, 100) for _ in range(2000)]
    assert (min(uniform), max(uniform)) == (5, 15)
    assert np.mean(uniform) == pytest.approx(10, abs=0.3)
    lognormal = [draw_length(LengthRecipe("lognormal", value=200, sigma=0.5, low=1, high=10000), draw, 10000) for _ in range(4000)]
    assert np.mean(lognormal) == pytest.approx(200, rel=0.05)
    assert np.std(np.log(lognormal)) == pytest.approx(0.5, rel=0.05)
    assert max(draw_length(LengthRecipe("lognormal", value=200, sigma=2, low=8, high=300), draw, 250) for _ in range(500)) == 250


def test_prompt_and_output_fit_into_the_context() -> None:
    prompt = stream(length=1000, max_context=100)(0)
    assert (len(prompt.ids), prompt.output) == (99, 1)


def test_a_vocabulary_of_special_ids_only_is_refused() -> None:
    with pytest.raises(ValueError, match="special"):
        usable_ids(3, (0, 1, 2))


@pytest.mark.parametrize("route", sorted(PATHS))
def test_bodies_stream_greedily_and_ask_for_counts(route: str) -> None:
    value = body(Prompt(output=5, ids=(7, 8)), route, "m")
    assert value["stream"] is True
    if route == "generate":
        assert value["input_ids"] == [7, 8]
        assert value["sampling_params"] == {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
    else:
        assert value["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert (value["max_tokens"], value["ignore_eos"], value["temperature"]) == (5, True, 0)
    assert json.loads(encode(value)) == value


def test_text_and_messages() -> None:
    assert body(Prompt(output=1, text="hello"), "generate", "m")["text"] == "hello"
    messages = ({"role": "user", "content": "hi"},)
    assert body(Prompt(output=1, messages=messages), "chat", "m")["messages"] == list(messages)


def test_a_request_is_whole_http() -> None:
    head, _, content = request(Prompt(output=5, ids=(7,)), "generate", "m", "h:1", "/api").partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/generate HTTP/1.1\r\nHost: h:1\r\n")
    assert f"Content-Length: {len(content)}".encode() in head


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_asked_spread_and_the_rate_is_exact(burstiness: float, cv: float) -> None:
    times = gamma_schedule(50.0, burstiness, 4000, seed=3)
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert gaps.min() >= 0
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.1)
    assert len(times) / (times[-1] + gaps.mean()) == pytest.approx(50.0, rel=1e-3)
    assert times == gamma_schedule(50.0, burstiness, 4000, seed=3) != gamma_schedule(50.0, burstiness, 4000, seed=4)


def test_poisson_counts_are_poisson() -> None:
    counts = np.bincount(np.asarray(gamma_schedule(20.0, 1.0, 20_000, seed=1)).astype(int))[:-1]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1.0, abs=0.15)


def test_arrivals_refuse_nonsense_and_fill_the_time() -> None:
    for rate, burstiness, count in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="positive"):
            gamma_schedule(rate, burstiness, count, 1)
    assert (count_for(4, 60), count_for(0.1, 1)) == (240, 8)
    assert trace_schedule([5.0, 6.0, 9.0], speed=2) == [0.0, 0.5, 2.0]
    with pytest.raises(ValueError, match="order"):
        trace_schedule([2.0, 1.0])


def test_a_job_survives_json() -> None:
    job = Job(url="http://h:1", input=LengthRecipe("uniform"), special=(1, 2))
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    with pytest.raises(TypeError):
        Job.from_json({**job.to_json(), "unknown": 1})
