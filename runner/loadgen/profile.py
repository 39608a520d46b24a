"""Where the time goes: a short profile at a phase's steady load, read into time per forward pass by kind of work.

The trace is Chrome's JSON as torch writes it (plain or gzipped). On GPUs the events of category `kernel`, `gpu_memcpy` and
`gpu_memset` count; in a trace without any, the CPU operators count with their own time (children taken away)."""

import gzip
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import requests
from pydantic import Field

from runner.loadgen.control import session
from runner.spec.base import Strict

RULES = Path(__file__).with_name("kernel_rules.yaml")
GPU_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
UNNAMED = "unnamed"
SHOWN = 40
NAME_CHARS = 1000


class KernelTime(Strict):
    """One kernel's or operator's share: calls and milliseconds a forward pass."""

    name: str
    kind: str
    calls: float
    ms: float


class Profile(Strict):
    """Milliseconds a forward pass. `by_kind` sums durations over streams (they may overlap, so they may exceed `pass_ms`);
    `idle_ms` is the time when nothing ran. `unnamed_share`: of the busy time, what no rule names."""

    device: str = Field(description="gpu or cpu: which events were read")
    passes: int
    pass_ms: float
    by_kind: dict[str, float]
    idle_ms: float
    unnamed_share: float
    kernels: tuple[KernelTime, ...] = Field(default=(), description="the largest")
    names: tuple[str, ...] = Field(
        default=(), description="of all kernels that ran: what is proved by a kernel may take no time to speak of"
    )
    traces: tuple[str, ...] = ()
    simulated: bool = False

    def share(self, kind: str) -> float:
        """Of the busy time, 0 to 1."""
        busy = sum(self.by_kind.values())
        return self.by_kind.get(kind, 0.0) / busy if busy else 0.0


@cache
def rules(path: Path = RULES) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(kind, pattern) in order. Raises OSError, or re.error for a bad pattern."""
    import yaml

    content: dict[str, list[str]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple((kind, re.compile("|".join(patterns), re.IGNORECASE)) for kind, patterns in content.items())


@cache
def kind_of(name: str) -> str:
    """The kind of a kernel by its name; `unnamed` when no rule knows it."""
    return next((kind for kind, pattern in rules() if pattern.search(name)), UNNAMED)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace. Raises OSError, EOFError (still being written) or ValueError."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        content = json.load(file)
    events = content["traceEvents"] if isinstance(content, dict) else content
    return [event for event in events if isinstance(event, dict)]


def profile_of(events: Iterable[dict[str, Any]], passes: int) -> Profile:
    """`passes`: forward passes asked for, used where the trace does not mark them itself (SGLang's `step[...]` annotations: a
    profile may hold one pass fewer). Durations in the trace are microseconds. Raises ValueError for an empty trace."""
    complete = [event for event in events if event.get("ph") == "X" and event.get("dur") is not None]
    marked = sum(event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith("step[") for event in complete)
    passes = marked or passes
    gpu = [event for event in complete if str(event.get("cat", "")).lower() in GPU_KINDS]
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    used = gpu or [event for event in complete if event.get("cat") == "cpu_op"]
    if not used:
        raise ValueError("the trace has neither kernels nor CPU operators")
    for name, own in ((str(event["name"]), float(event["dur"])) for event in gpu) if gpu else own_times(used):
        entry = spent[name]
        entry[0] += 1
        entry[1] += own
    spans = [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in used]
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    by_kind: dict[str, float] = defaultdict(float)
    for name, (_, own) in spent.items():
        by_kind[kind_of(name)] += own / 1e3 / passes
    busy = sum(by_kind.values())
    largest = sorted(spent.items(), key=lambda item: -item[1][1])[:SHOWN]
    return Profile(
        device="gpu" if gpu else "cpu",
        passes=passes,
        pass_ms=whole / 1e3 / passes,
        by_kind=dict(sorted(by_kind.items(), key=lambda item: -item[1])),
        idle_ms=max(0.0, whole - covered(spans)) / 1e3 / passes,
        unnamed_share=by_kind.get(UNNAMED, 0.0) / busy if busy else 0.0,
        kernels=tuple(
            KernelTime(name=name[:200], kind=kind_of(name), calls=calls / passes, ms=own / 1e3 / passes) for name, (calls, own) in largest
        ),
        names=tuple(sorted({name[:NAME_CHARS] for name in spent})),
    )


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return total


def own_times(events: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """(name, own microseconds) of nested CPU operators: the duration without the operators called inside, a thread at a time."""
    result: list[tuple[str, float]] = []
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_thread[(event.get("pid"), event.get("tid"))].append(event)
    for thread in by_thread.values():
        stack: list[list[Any]] = []
        for event in sorted(thread, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
            begin, duration = float(event["ts"]), float(event["dur"])
            while stack and stack[-1][1] <= begin:
                name, _, own = stack.pop()
                result.append((name, own))
            if stack:
                stack[-1][2] -= duration
            stack.append([str(event["name"]), begin + duration, duration])
        result += [(name, own) for name, _, own in stack]
    return [(name, max(0.0, own)) for name, own in result]


def start_profile(url: str, folder: Path, steps: int, gpu: bool) -> None:
    """Asks the server for a profile of `steps` forward passes into `folder`. Raises RuntimeError when it refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {"output_dir": str(folder), "num_steps": steps, "activities": ["CPU", "GPU"] if gpu else ["CPU"]}
    with session() as http:
        try:
            answer = http.post(f"{url}/start_profile", json=body, timeout=120)
        except requests.RequestException as error:
            raise RuntimeError(f"/start_profile failed: {type(error).__name__}") from None
    if answer.status_code != 200:
        raise RuntimeError(f"/start_profile was refused: HTTP {answer.status_code} {answer.text[:200]}")


def wait_for_traces(folder: Path, deadline_s: float) -> list[Path]:
    """The trace files of all ranks, once whole (readable to the end and no longer growing). Raises TimeoutError."""
    deadline = time.monotonic() + deadline_s
    sizes: dict[Path, int] = {}
    while time.monotonic() < deadline:
        found = sorted(path for path in folder.rglob("*.json*") if path.name.endswith((".json", ".json.gz")))
        now = {path: path.stat().st_size for path in found}
        if found and now == sizes and all(size > 0 for size in now.values()):
            return found
        sizes = now
        time.sleep(0.25)
    raise TimeoutError(f"no whole trace in {folder} after {deadline_s:.0f} s")


def read_profile(paths: Sequence[Path], passes: int) -> Profile:
    """The profile of rank 0's trace (the first by name that holds work); all traces are listed. Raises ValueError."""
    reasons = []
    for path in paths:
        try:
            profile = profile_of(read_trace(path), passes)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"{path.name}: {error}")
            continue
        return profile.model_copy(update={"traces": tuple(str(p) for p in paths)})
    raise ValueError("; ".join(reasons) or "no trace")
