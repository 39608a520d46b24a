"""From a prompt to the bytes of a request, for each route of the server."""

import json
from typing import Any

from runner.loadgen.prompts import Prompt

PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


def body(prompt: Prompt, route: str, model: str) -> dict[str, Any]:
    """The JSON body: greedy, the end token ignored, streamed, with the server's own token count in every chunk.

    The chat route has no ids; a random prompt is spelled as numbers there, and its length is whatever the server counts.
    Raises KeyError for an unknown route."""
    PATHS[route]
    if route == "generate":
        content: dict[str, Any] = {"text": prompt.text} if prompt.text is not None else {"input_ids": list(prompt.ids)}
        if prompt.messages and prompt.text is None:
            content = {"text": "\n".join(message["content"] for message in prompt.messages)}
        sampling = {"max_new_tokens": prompt.output, "temperature": 0, "ignore_eos": True}
        return {**content, "sampling_params": sampling, "stream": True}
    shared = {
        "model": model,
        "max_tokens": prompt.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if route == "completions":
        return {"prompt": prompt.text if prompt.text is not None else list(prompt.ids), **shared}
    messages = list(prompt.messages) or [{"role": "user", "content": prompt.text or " ".join(map(str, prompt.ids))}]
    return {"messages": messages, **shared}


def encode(value: dict[str, Any]) -> bytes:
    """JSON without spaces; a long list of ids in front is spelled directly, which is twice as fast."""
    name, first = next(iter(value.items()))
    if not isinstance(first, list) or name == "messages":
        return json.dumps(value, separators=(",", ":")).encode()
    rest = json.dumps({key: value[key] for key in value if key != name}, separators=(",", ":"))
    return f'{{"{name}":[{",".join(map(str, first))}],{rest[1:]}'.encode()


def request(prompt: Prompt, route: str, model: str, host: str, prefix: str = "") -> bytes:
    """Head and body of the request as they go on the wire."""
    content = encode(body(prompt, route, model))
    head = (
        f"POST {prefix}{PATHS[route]} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
