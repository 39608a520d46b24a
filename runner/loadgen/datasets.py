"""Workloads from local files: traces with timestamps and lengths, and ShareGPT-like text.

Standard library, and jinja2 only when a chat template is rendered. Each file is read once a phase, outside the window."""

import contextlib
import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from runner.loadgen.job import Job
from runner.loadgen.prompts import Prompt, draw_ids, draw_length, usable_ids

# Mooncake's traces hash the prompt in blocks of this many tokens; equal hashes are equal blocks.
HASH_BLOCK_TOKENS = 512
CHECKED_BYTES = 32 << 20
TIME_NAMES = ("timestamp", "time", "arrival_time", "arrived_at")
INPUT_NAMES = ("input_length", "contexttokens", "input_tokens", "prompt_tokens", "num_prefill_tokens")
OUTPUT_NAMES = ("output_length", "generatedtokens", "output_tokens", "completion_tokens", "num_decode_tokens")


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace: `at` in seconds from the first, lengths in tokens, block hashes where the trace has them."""

    at: float
    input: int
    output: int
    hashes: tuple[int, ...] = ()


def read_trace(path: Path) -> list[TraceRow]:
    """A trace in CSV (Azure: TIMESTAMP, ContextTokens, GeneratedTokens) or JSONL (Mooncake: timestamp in ms, input_length,
    output_length, hash_ids), in order of time. Raises OSError, or ValueError naming file and line."""
    rows: list[tuple[float, int, int, tuple[int, ...]]] = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        source: Any = csv.DictReader(file) if path.suffix.lower() == ".csv" else (json.loads(line) for line in file if line.strip())
        try:
            for record in source:
                fields = {str(key).strip().lower(): value for key, value in record.items()}
                hashes = fields.get("hash_ids") or ()
                rows.append(
                    (
                        _moment(_field(fields, TIME_NAMES)),
                        max(1, int(float(_field(fields, INPUT_NAMES)))),
                        max(1, int(float(_field(fields, OUTPUT_NAMES)))),
                        tuple(int(value) for value in hashes),
                    )
                )
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, request {len(rows) + 1}: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no request")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    # Mooncake counts whole milliseconds from 0; Azure writes dates. A JSONL stamp is in ms unless it has a fraction.
    unit = 1e-3 if path.suffix.lower() != ".csv" and all(float(row[0]).is_integer() for row in rows) else 1.0
    return [TraceRow((at - first) * unit, taken, given, hashes) for at, taken, given, hashes in rows]


def _field(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if fields.get(name) not in (None, ""):
            return fields[name]
    raise KeyError(f"none of the columns {', '.join(names)}")


def _moment(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        text = str(value).strip()
        # Azure writes seven digits of a second; Python reads six.
        if "." in text:
            head, _, tail = text.partition(".")
            digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
            text = f"{head}.{digits[:6]}{tail[len(digits) :]}"
        return datetime.fromisoformat(text).timestamp()


def trace_stamps(job: Job) -> list[float]:
    """Arrival times of the job's trace, s from the first. Raises OSError or ValueError."""
    return [row.at for row in read_trace(_path(job))]


def trace_prompts(job: Job) -> Callable[[int], Prompt]:
    """Prompts of the trace's lengths from seeded ids; blocks with one hash are the same ids, so the trace's prefix reuse is kept.
    Beyond its end the trace begins again, with other ids where it has no hashes."""
    rows, ids = read_trace(_path(job)), usable_ids(job.vocab_size, job.special)
    key = f"{job.seed}/{job.stream}"

    def prompt(index: int) -> Prompt:
        row = rows[index % len(rows)]
        length = min(row.input, job.max_context - 1)
        tokens: list[int] = []
        for block in row.hashes:
            if len(tokens) < length:
                tokens += draw_ids(ids, f"{key}/block/{block}", HASH_BLOCK_TOKENS)
        tokens = tokens[:length] + draw_ids(ids, f"{key}/{index}", max(0, length - len(tokens)))
        return Prompt(output=min(row.output, job.max_context - length), ids=tuple(tokens))

    return prompt


def read_conversations(path: Path) -> list[tuple[dict[str, str], ...]]:
    """ShareGPT-like JSON or JSONL: `conversations` [{from, value}], `messages` [{role, content}], or `prompt`/`text`. Each gives
    the messages up to the last one of the user before an answer. Raises OSError or ValueError."""
    text = path.read_text(encoding="utf-8")
    try:
        records = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path} is neither JSON nor JSONL: {error}") from None
    found = []
    for record in records:
        messages = _messages(record)
        if messages:
            found.append(messages)
    if not found:
        raise ValueError(f"{path} has no conversation with a user's message")
    return found


def _messages(record: Any) -> tuple[dict[str, str], ...]:
    if isinstance(record, str):
        return ({"role": "user", "content": record},)
    roles = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
    turns = record.get("messages") or record.get("conversations") or []
    messages = [
        {"role": roles.get(str(turn.get("role", turn.get("from"))), "user"), "content": str(turn.get("content", turn.get("value", "")))}
        for turn in turns
    ]
    if not messages and (record.get("prompt") or record.get("text")):
        messages = [{"role": "user", "content": str(record.get("prompt") or record["text"])}]
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "user" and messages[at]["content"]), None)
    return tuple(messages[: last + 1]) if last is not None else ()


def template_source(model_path: str | None) -> tuple[str, dict[str, Any]]:
    """The model's own chat template (chat_template.jinja, or in tokenizer_config.json; "" where there is none) and its tokenizer's
    configuration."""
    if not model_path:
        return "", {}
    folder = Path(model_path)
    config: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    try:
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        source = config.get("chat_template") or ""
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), "")
    return str(source), config


def text_name(dataset_path: str, model_path: str | None, route: str) -> str:
    """What a text workload sends, for the record: heads of the SHA-256 of the file and of the chat template it went through. On the
    chat route the server applies its own. A file that is gone is `unreadable`."""
    try:
        file = sha256(Path(dataset_path).read_bytes()).hexdigest()[:16]
    except OSError:
        file = "unreadable"
    if route == "chat":
        return f"text:{file}, chat template: the server's"
    source, _ = template_source(model_path)
    return f"text:{file}, chat template: " + (sha256(source.encode()).hexdigest()[:16] if source else "none, plain text")


def chat_template(model_path: str | None) -> Callable[[tuple[dict[str, str], ...]], str] | None:
    """The model's own chat template as a function; None where there is none."""
    source, config = template_source(model_path)
    if not source:
        return None
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    tokens = {
        name: value.get("content", "") if isinstance(value, dict) else value or ""
        for name, value in config.items()
        if name.endswith("_token")
    }

    def render(messages: tuple[dict[str, str], ...]) -> str:
        return str(template.render(messages=list(messages), add_generation_prompt=True, **tokens))

    return render


def text_prompts(job: Job) -> Callable[[int], Prompt]:
    """Conversations in a seeded order, each once until all were used; then they come again with a number in front of the first
    message, so that no prompt is sent twice and none is answered from the cache. On /generate they go through the chat template here (plain
    text where the model has none); the chat route leaves that to the server. Lengths are whatever the server counts."""
    conversations = read_conversations(_path(job))
    order = list(range(len(conversations)))
    random.Random(f"{job.seed}/{job.stream}/order").shuffle(order)
    render = chat_template(job.model_path) if job.route != "chat" else None

    def prompt(index: int) -> Prompt:
        messages = _again(conversations[order[index % len(order)]], index // len(order))
        output = draw_length(job.output, random.Random(f"{job.seed}/{job.stream}/{index}"), job.max_context)
        if job.route == "chat":
            return Prompt(output=output, messages=messages)
        return Prompt(output=output, text=render(messages) if render else "\n\n".join(m["content"] for m in messages))

    return prompt


def _again(messages: tuple[dict[str, str], ...], turn: int) -> tuple[dict[str, str], ...]:
    return messages if turn == 0 else ({**messages[0], "content": f"({turn + 1}) {messages[0]['content']}"}, *messages[1:])


def check_dataset(dataset: str, arrival: str, path: str | None) -> str:
    """'' when the phase's file can be used, else why not. Reads a file of at most CHECKED_BYTES to its end: a bad line must not be
    found after a model has been loaded for an hour."""
    if dataset == "random_ids" and arrival != "trace":
        return ""
    if not path:
        needed = "arrival=trace" if arrival == "trace" else f"dataset={dataset}"
        return f"{needed} needs dataset_path, a local file"
    try:
        with open(path, "rb") as file:
            large = file.seek(0, 2) > CHECKED_BYTES
        if not large and (dataset == "trace" or arrival == "trace"):
            read_trace(Path(path))
        if not large and dataset == "text":
            read_conversations(Path(path))
    except OSError as error:
        return f"dataset_path={path}: {error.strerror or error}"
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        return f"dataset_path={path}: {error}"
    return ""


def prompts_from(job: Job) -> Callable[[int], Prompt]:
    """The prompts of a job whose dataset is a file. Raises OSError or ValueError."""
    return trace_prompts(job) if job.dataset == "trace" else text_prompts(job)


def _path(job: Job) -> Path:
    if not job.dataset_path:
        raise ValueError(f"dataset={job.dataset} needs dataset_path, a local file")
    return Path(job.dataset_path)
