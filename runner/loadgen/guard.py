"""The output guard: fixed seeded prompts, their log-probabilities and greedy tokens, right after the server is ready."""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

from runner.loadgen.base import GuardOrder
from runner.loadgen.control import session
from runner.loadgen.job import LengthRecipe
from runner.loadgen.prompts import PromptStream
from runner.records.schema import Fingerprint

PROMPT_TOKENS = 64
TIMEOUT_S = 600.0


def guard_prompts(order: GuardOrder) -> list[list[int]]:
    """The prompts, from the seed and the vocabulary alone: the same in every launch of a study."""
    stream = PromptStream(
        key=f"guard/{order.seed}",
        vocab_size=order.model.vocab_size,
        special=order.model.special_token_ids,
        input=LengthRecipe(value=PROMPT_TOKENS),
        output=LengthRecipe(value=order.tokens),
        max_context=order.model.max_context,
    )
    return [list(stream(number).ids) for number in range(order.prompts)]


def take_fingerprint(order: GuardOrder) -> Fingerprint:
    """Asks one prompt after the other (a batch would change the kernels). Never raises for a server's doing: the state says."""
    prompts = guard_prompts(order)
    digest = hashlib.sha256(json.dumps([prompts, order.tokens]).encode()).hexdigest()[:16]
    if not prompts:
        return Fingerprint(prompts_hash=digest, state="not_taken", note="no guard prompts are asked for")
    logprobs, tokens = [], []
    with session() as http:
        for ids in prompts:
            try:
                answer = http.post(f"{order.url}/generate", json=guard_body(ids, order.tokens), timeout=TIMEOUT_S)
                meta, output = read_answer(answer)
            except (requests.RequestException, ValueError) as error:
                return Fingerprint(prompts_hash=digest, state="not_taken", note=f"{type(error).__name__}: {error}"[:300])
            logprobs.append(meta)
            tokens.append(output)
        score, note = score_tasks(order.url, Path(order.tasks), http) if order.tasks else (None, "")
    state, why = state_of(logprobs, tokens, [len(ids) for ids in prompts], order.tokens)
    return Fingerprint(
        prompts_hash=digest,
        # NaN is not JSON; a position without a number keeps its place as 0 and the state says so.
        logprobs=tuple(tuple(value if math.isfinite(value) else 0.0 for value in row) for row in logprobs),
        tokens=tuple(tuple(row) for row in tokens),
        state=state,
        note="; ".join(filter(None, (why, note))),
        task_score=score,
    )


def guard_body(ids: Sequence[int], tokens: int) -> dict[str, Any]:
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
        "stream": False,
    }


def read_answer(answer: requests.Response) -> tuple[list[float], list[int]]:
    """Prompt log-probabilities (from the second token on; the first has none) and output ids. Raises ValueError with the reason."""
    if answer.status_code != 200:
        raise ValueError(f"HTTP {answer.status_code}: {answer.text[:200]}")
    value = answer.json()
    value = value[0] if isinstance(value, list) else value
    meta = value.get("meta_info") or {}
    pairs = meta.get("input_token_logprobs")
    if pairs is None:
        raise ValueError("the server gave no input_token_logprobs")
    reason = meta.get("finish_reason")
    if "NaN happened" in json.dumps(reason):
        return [math.nan] * len(pairs), []
    numbers = [math.nan if pair[0] is None else float(pair[0]) for pair in pairs]
    # The first position has no predecessor: null there is right, later it is not a number.
    numbers = numbers[1:] if numbers and math.isnan(numbers[0]) else numbers
    output = value.get("output_ids")
    if output is None:
        output = [pair[1] for pair in meta.get("output_token_logprobs") or []]
    return numbers, [int(token) for token in output]


def state_of(logprobs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], lengths: Sequence[int], asked: int) -> tuple[Any, str]:
    """usable, nan, wrong_length or cannot_tell, and why."""
    if any(not math.isfinite(value) for row in logprobs for value in row):
        return "nan", "a prompt log-probability is not a number"
    for row, output, length in zip(logprobs, tokens, lengths, strict=True):
        if len(row) not in (length - 1, length):
            return "wrong_length", f"{len(row)} prompt log-probabilities for a prompt of {length} tokens"
        if len(output) != asked:
            return "wrong_length", f"{len(output)} tokens where {asked} were asked for"
    values = [value for row in logprobs for value in row]
    if values and max(values) - min(values) < 1e-4:
        return "cannot_tell", "all prompt log-probabilities are equal, as with dummy weights"
    return "usable", ""


def read_tasks(path: Path) -> list[dict[str, Any]]:
    """The tasks of a JSONL file. Raises OSError, or ValueError naming the line that is no task."""
    tasks = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from None
        if not isinstance(task, dict) or not (task.get("prompt") or task.get("question")) or task.get("answer") in (None, ""):
            raise ValueError(f'line {number} is no task: it needs "prompt" or "question", and "answer"')
        tasks.append(task)
    if not tasks:
        raise ValueError("the file has no task")
    return tasks


def check_tasks(path: str) -> str:
    """'' when the task file can be used, else why not."""
    try:
        read_tasks(Path(path))
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    except ValueError as error:
        return f"{path}: {error}"
    return ""


def score_tasks(url: str, path: Path, http: requests.Session) -> tuple[float | None, str]:
    """Share of right answers over a JSONL of {"prompt" or "question", "answer", optional "max_tokens"}, greedy. GSM8K-like: the
    last number of the output is compared when the answer is a number (after '####' where there is one), else the text must
    occur in the output. A task that fails to be served is a wrong answer."""
    try:
        lines = read_tasks(path)
    except (OSError, ValueError) as error:
        return None, f"tasks not read: {error}"
    right = 0
    for task in lines:
        prompt = str(task.get("prompt", task.get("question", "")))
        sampling = {"max_new_tokens": int(task.get("max_tokens", 256)), "temperature": 0}
        try:
            answer = http.post(f"{url}/generate", json={"text": prompt, "sampling_params": sampling}, timeout=TIMEOUT_S)
            text = str(answer.json().get("text", "")) if answer.status_code == 200 else ""
        except (requests.RequestException, ValueError):
            text = ""
        right += is_right(text, str(task.get("answer", "")))
    return right / len(lines), f"{right} of {len(lines)} tasks right"


def is_right(output: str, answer: str) -> bool:
    """See score_tasks."""
    import re

    wanted = answer.rsplit("####", 1)[-1].strip().replace(",", "")
    if not wanted:
        return False
    if re.fullmatch(r"-?\d+(\.\d+)?", wanted):
        numbers = re.findall(r"-?\d+(?:\.\d+)?", output.replace(",", ""))
        return bool(numbers) and float(numbers[-1]) == float(wanted)
    return wanted.lower() in output.lower()
