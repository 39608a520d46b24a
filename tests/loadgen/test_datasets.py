"""Traces and text from local files."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from runner.loadgen.datasets import HASH_BLOCK_TOKENS, chat_template, read_conversations, read_trace, text_name, trace_stamps
from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.prompts import prompts_of

MOONCAKE = [
    {"timestamp": 3052, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [46, 47, 48]},
    {"timestamp": 3052, "input_length": 30, "output_length": 5, "hash_ids": [99]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
CHAT = [
    {"id": "a", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}, {"from": "human", "value": "bye"}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "no user"}]},
    {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what?"}, {"role": "assistant", "content": "x"}]},
    {"prompt": "plain"},
]


def job(path: Path, **more: object) -> Job:
    fields: dict[str, object] = {"dataset": "trace", "vocab_size": 500, "output": LengthRecipe(value=9), **more}
    return Job(url="http://h:1", dataset_path=str(path), **fields)  # type: ignore[arg-type]


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, MOONCAKE)))
    return path


def test_mooncake_is_in_milliseconds_and_put_in_order(mooncake: Path) -> None:
    rows = read_trace(mooncake)
    assert [(row.at, row.input, row.output) for row in rows] == [(0.0, 1100, 500), (3.052, 700, 52), (3.052, 30, 5)]
    assert trace_stamps(job(mooncake)) == [0.0, 3.052, 3.052]


def test_equal_hashes_are_equal_blocks(mooncake: Path) -> None:
    prompts = prompts_of(job(mooncake))
    long, short, other = prompts(0).ids, prompts(1).ids, prompts(2).ids
    assert (len(long), len(short), len(other)) == (1100, 700, 30)
    assert long[:700] == short
    assert long[:30] != other
    assert long[HASH_BLOCK_TOKENS : 2 * HASH_BLOCK_TOKENS] != long[:HASH_BLOCK_TOKENS]
    assert prompts(0) == prompts_of(job(mooncake))(0)
    assert prompts_of(job(mooncake, max_context=100))(0).output == 1


def test_azure_csv_with_dates(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    rows = read_trace(path)
    assert [(row.input, row.output) for row in rows] == [(374, 44), (396, 109)]
    assert rows[1].at == pytest.approx(4.314579, abs=1e-5)
    # Without hashes a trace that begins again has other ids.
    prompts = prompts_of(job(path))
    assert prompts(0).ids != prompts(2).ids
    assert len(prompts(0).ids) == len(prompts(2).ids)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n1,2\n", "request 1: .*output_length"),
        ("a.jsonl", '{"timestamp": 0, "input_length": "x", "output_length": 1}', "request 1"),
        ("a.jsonl", "", "no request"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,2,3\n", "request 1"),
    ],
)
def test_a_bad_trace_names_the_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_trace(tmp_path / name)


@pytest.mark.parametrize("lines", [True, False])
def test_sharegpt_like_text_ends_with_the_users_turn(tmp_path: Path, lines: bool) -> None:
    path = tmp_path / "chat.json"
    path.write_text("\n".join(map(json.dumps, CHAT)) if lines else json.dumps(CHAT))
    found = read_conversations(path)
    assert [messages[-1] for messages in found] == [{"role": "user", "content": text} for text in ("bye", "what?", "plain")]
    assert [len(messages) for messages in found] == [3, 2, 1]
    with pytest.raises(ValueError, match="no conversation"):
        (tmp_path / "empty.json").write_text("[]")
        read_conversations(tmp_path / "empty.json")


def test_text_goes_through_the_models_chat_template(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(CHAT))
    template = "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    config = {"chat_template": template, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    texts = {prompts_of(job(path, dataset="text", model_path=str(tmp_path)))(index).text for index in range(3)}
    assert "<s><system>be brief<user>what?<assistant>" in texts
    plain = {prompts_of(job(path, dataset="text"))(index).text for index in range(3)}
    assert "be brief\n\nwhat?" in plain
    chat = prompts_of(job(path, dataset="text", route="chat"))(0)
    assert (chat.text, chat.output) == (None, 9)
    assert chat.messages[-1]["role"] == "user"
    (tmp_path / "chat_template.jinja").write_text("own file")
    render = chat_template(str(tmp_path))
    assert render is not None
    assert render(()) == "own file"
    assert chat_template(None) is None


def test_each_conversation_once_before_any_twice_in_a_seeded_order(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"p{n}"}) for n in range(20)))
    prompts = prompts_of(job(path, dataset="text"))
    first = [prompts(index).text for index in range(20)]
    assert len(set(first)) == 20
    assert first != [f"p{n}" for n in range(20)]
    # A second round is told from the first from its first word on: nothing is answered from the cache.
    assert [prompts(index + 20).text for index in range(20)] == [f"(2) {text}" for text in first]
    assert first != [prompts_of(job(path, dataset="text", seed=1))(index).text for index in range(20)]


def test_file_and_template_of_a_text_workload_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("{}")
    file = sha256(b"{}").hexdigest()[:16]
    assert text_name(str(path), None, "generate") == f"text:{file}, chat template: none, plain text"
    assert text_name(str(path), str(tmp_path), "chat") == f"text:{file}, chat template: the server's"
    (tmp_path / "chat_template.jinja").write_text("T")
    assert text_name(str(path), str(tmp_path), "generate") == f"text:{file}, chat template: {sha256(b'T').hexdigest()[:16]}"
    assert "unreadable" in text_name(str(tmp_path / "gone"), None, "generate")


def test_a_dataset_without_a_file_says_so() -> None:
    with pytest.raises(ValueError, match="needs dataset_path"):
        prompts_of(Job(url="http://h:1", dataset="text"))
