"""What the installed engine makes of each arm: resolved arguments, or its own refusal. No server is started.

One process of the engine's interpreter runs `resolver_script.py` (standard library only), imports the argument module once and
forks for each arm. `options_of` asks the same process for the options it knows.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import Field

from runner.engines.audit.variables import env_reads, reads_of
from runner.errors import UserError
from runner.spec.base import Strict

__all__ = ["Resolution", "ResolveFailed", "ResolveRequest", "env_reads", "options_of", "reads_of", "resolve_all"]

# torch says this in a child whose parent already opened the GPU; such arms are resolved again, each in a process of its own.
FORKED = "Cannot re-initialize CUDA in forked subprocess"
ALONE_AT_A_TIME = 8
SCRIPT = Path(__file__).with_name("resolver_script.py")


class ResolveRequest(Strict):
    """One arm to resolve. `argv`: engine options as words (see `engines.base.argv_of`), without the program's name."""

    key: str
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)

    def as_on_cuda(self) -> "ResolveRequest":
        """The same arm for an interpreter that sees no GPU: the device is named, or the engine stops at looking for one."""
        named = any(word == "--device" or word.startswith("--device=") for word in self.argv)
        return self if named else self.model_copy(update={"argv": (*self.argv, "--device", "cuda")})


class Resolution(Strict):
    """What the engine made of one arm. `resolved` leaves out what differs between two equal requests (`unstable`: random seeds,
    free ports), so that equal configurations compare equal."""

    key: str
    ok: bool
    resolved: dict[str, Any] = Field(default_factory=dict)
    error: str = Field(default="", description="the engine's own sentence")
    kind: str = Field(
        default="",
        description="'' when ok; unknown_cli_option, invalid_option_value, rejected_argument_combination, unsupported_model, "
        "model_not_readable, import_failed, died, timeout, error",
    )
    seconds: float = 0.0
    environment: dict[str, str] = Field(default_factory=dict, description="variables that the engine itself set while resolving")
    unstable: dict[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = Field(default=(), description="e.g. an option that was taken as an abbreviation of another")
    where: str = Field(default="", description="file:line of the engine that raised")
    log: str = Field(default="", description="tail of what the engine said while resolving")
    engine_version: str | None = None
    capability: int | None = Field(default=None, description="compute capability x 10 that the engine saw; None: no GPU seen")
    capability_confirmed: bool = Field(
        default=True, description="False: the node's capability was not the one seen, so what depends on the architecture is unconfirmed"
    )


class ResolveFailed(UserError):
    """The engine's interpreter could not resolve anything at all (no engine, import error)."""


def resolve_all(
    python: str,
    requests: Sequence[ResolveRequest],
    *,
    env: Mapping[str, str] | None = None,
    python_path: tuple[str, ...] = (),
    jobs: int | None = None,
    timeout_s: float = 300,
    capability: int | None = None,
) -> list[Resolution]:
    """Resolves every request with the engine of `python`, in the order given.

    `env` goes over the caller's environment for the whole process, a request's `env` only for its own arm (after the import:
    a module that reads the environment while it is imported has seen `env`). `python_path` goes first on the path (overlays).
    `jobs`: children at a time, default all cores. `timeout_s`: for everything together. `capability`: the node's (120 for
    SM120); it is compared with what the engine saw, never faked. Raises ResolveFailed when the engine does not import.
    """
    if not requests:
        return []
    keys = [request.key for request in requests]
    if len(set(keys)) != len(keys):
        raise ValueError("resolve requests need distinct keys")
    width = jobs or len(os.sched_getaffinity(0))
    order = {
        "mode": "resolve",
        "requests": [request.model_dump(mode="json") for request in requests],
        "jobs": width,
        "timeout_s": timeout_s,
    }
    begun = time.monotonic()
    messages = _ask(python, order, env=env, python_path=python_path, timeout_s=timeout_s)
    engine: dict[str, Any] = next((message["engine"] for message in messages if "engine" in message), {})
    repeats = [message for message in messages if message.get("scout")]
    answers = {message["key"]: message for message in messages if "key" in message and not message.get("scout")}
    for repeat in repeats:
        answers.setdefault(repeat["key"], repeat)
    forked = [request for request in requests if FORKED in answers.get(request.key, {}).get("error", "")]

    def alone(request: ResolveRequest) -> dict[str, dict[str, Any]]:
        asked = {"mode": "alone", "requests": [request.model_dump(mode="json")]}
        left = timeout_s - (time.monotonic() - begun)
        said = _ask(python, asked, env=env, python_path=python_path, timeout_s=max(left, 1))
        return {message["key"]: message for message in said if "key" in message}

    if forked:  # each imports the engine (ten seconds and about a gigabyte), so beside each other, but not on every core
        with ThreadPoolExecutor(max_workers=min(len(forked), width, ALONE_AT_A_TIME)) as pool:
            for answer in pool.map(alone, forked):
                answers |= answer
    same = [message["resolved"] for message in (*repeats, *(answers[key] for key in keys[:1] if key in answers)) if message["ok"]]
    unstable = _unstable_keys(same)
    seen = engine.get("capability")
    results = []
    for request in requests:
        answer = answers.get(request.key) or {"ok": False, "kind": "timeout", "error": f"no answer within {timeout_s:g} s"}
        resolved = answer.get("resolved", {})
        results.append(
            Resolution(
                key=request.key,
                ok=answer["ok"],
                resolved={name: value for name, value in resolved.items() if name not in unstable},
                unstable={name: value for name, value in resolved.items() if name in unstable},
                environment=answer.get("environment", {}),
                error=answer.get("error", ""),
                kind=answer.get("kind", ""),
                seconds=answer.get("seconds", 0.0),
                notes=tuple(answer.get("notes", ())),
                where=answer.get("where", ""),
                log=answer.get("log", ""),
                engine_version=engine.get("version"),
                capability=seen,
                capability_confirmed=capability is None or capability == seen,
            )
        )
    return results


def options_of(python: str, *, env: Mapping[str, str] | None = None, python_path: tuple[str, ...] = (), timeout_s: float = 300) -> set[str]:
    """Names of all options the engine's parser takes, without leading dashes (aliases too). Raises ResolveFailed."""
    messages = _ask(python, {"mode": "options"}, env=env, python_path=python_path, timeout_s=timeout_s)
    for message in messages:
        if "options" in message:
            return {text.lstrip("-") for text in message["options"]}
    raise ResolveFailed(f"engine.python={python}: the engine did not tell its options")


def _unstable_keys(same: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Names whose values differ between resolutions of one and the same request; the usual ones when it was always refused."""
    if len(same) < 2:
        return frozenset({"random_seed", "nccl_port"})
    return frozenset(name for name in same[0] if any(other.get(name) != same[0][name] for other in same[1:]))


def _ask(
    python: str, order: Mapping[str, Any], *, env: Mapping[str, str] | None, python_path: Sequence[str], timeout_s: float
) -> list[dict[str, Any]]:
    """Runs the script with `order`; what it answered, also when the time ran out in the middle."""
    if not Path(python).is_file():
        raise ResolveFailed(f"engine.python={python}: there is no such file; give the interpreter of the engine's environment")
    surroundings = {**os.environ, **(env or {})}
    path = [*python_path, *filter(None, [surroundings.get("PYTHONPATH", "")])]
    if path:
        surroundings["PYTHONPATH"] = os.pathsep.join(path)
    # torch then asks NVML whether there is a GPU; a CUDA context opened before the fork would break every child.
    surroundings.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [python, "-u", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=log,
            env=surroundings,
            start_new_session=True,
            cwd=tempfile.gettempdir(),
        )
        timer = threading.Timer(timeout_s, _kill_session, [process.pid])
        timer.start()
        try:
            process.communicate(json.dumps(order).encode())
        except BaseException:
            _kill_session(process.pid)
            raise
        finally:
            timer.cancel()
        out.seek(0)
        log.seek(0)
        messages = [json.loads(line) for line in out.read().splitlines() if line.strip().startswith(b"{")]
        said = log.read().decode("utf-8", "replace")
    for message in messages:
        if "fatal" in message:
            raise ResolveFailed(f"engine.python={python}: the engine's argument module does not import: {message['fatal']}")
    if not messages:
        last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
        raise ResolveFailed(f"engine.python={python}: resolving gave no answer (exit code {process.returncode}): {last}")
    return messages


def _kill_session(pid: int) -> None:
    """Ends every process of the script's session: its children sit in process groups of their own."""
    for line in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = line.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == pid:
                os.kill(int(line.parent.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue
