"""Faults that can be asked for in `simulation.faults`: a list of {kind, and when}.

Which launches: `arm` (name, or pattern with *), `levels` (all must match), `launch` (launch index, or a list), `block`,
`share` (of the launches that match, seeded). With none of these: every launch.
When inside the launch: `at` is a stage of the start (distributed, weights, graphs, warmup) or `load`; giving `after_s` (seconds
after ready) or `after_requests` (requests received) means `load`. `value`: size of a wrong output's shift, or seconds.

kinds of a start or under load:  crash, os_oom, cuda_oom, nccl_error, hang
kinds of a start:                port_taken, orphan
kinds under load:                stream_error, truncated_stream (each hits every request from there on)
other kinds:                     wrong_output, nan, ignore_sigterm, slow_stop"""

import fnmatch
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EITHER = ("crash", "os_oom", "cuda_oom", "nccl_error", "hang")
UNDER_LOAD = ("stream_error", "truncated_stream")
KINDS = (*EITHER, *UNDER_LOAD, "port_taken", "orphan", "wrong_output", "nan", "ignore_sigterm", "slow_stop")
KEYS = ("kind", "arm", "levels", "launch", "block", "share", "at", "after_s", "after_requests", "value")
STAGES = ("distributed", "weights", "graphs", "warmup", "load")
NUMBERS = ("block", "share", "after_s", "after_requests", "value")
DEFAULT_STAGE = {"crash": "distributed", "os_oom": "weights", "cuda_oom": "weights", "nccl_error": "distributed", "hang": "graphs"}
DEFAULT_REQUESTS = 12  # requests received before a fault under load begins, when nothing else is said


@dataclass(frozen=True)
class Fault:
    """One fault that this launch has."""

    kind: str
    at: str = ""
    after_s: float | None = None
    after_requests: int | None = None
    value: float = 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check(faults: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the list, as one sentence with the choices; empty when nothing is."""
    for number, fault in enumerate(faults):
        where = f"engine.simulation.faults[{number}]"
        if fault.get("kind") not in KINDS:
            return f"{where}: there is no fault {fault.get('kind')!r}; choices: {', '.join(KINDS)}"
        unknown = sorted(set(fault) - set(KEYS))
        if unknown:
            return f"{where}: unknown key {', '.join(unknown)}; choices: {', '.join(KEYS)}"
        wrong = [key for key in NUMBERS if fault.get(key) is not None and not _is_number(fault[key])]
        if wrong:
            return f"{where}: {wrong[0]} must be a number (given: {fault[wrong[0]]!r})"
        launches = fault.get("launch")
        if launches is not None and not all(map(_is_number, launches if isinstance(launches, (list, tuple)) else [launches])):
            return f"{where}: launch must be a launch's index or a list of them (given: {launches!r})"
        if not isinstance(fault.get("levels") or {}, Mapping):
            return f"{where}: levels must be a mapping of factor to level (given: {fault['levels']!r})"
        if fault.get("at") and fault["at"] not in STAGES:
            return f"{where}: there is no stage {fault['at']!r}; choices: {', '.join(STAGES)}"
    return ""


def faults_of(
    faults: Sequence[Mapping[str, Any]], arm: str, levels: Mapping[str, str], launch_index: int, block: int, seed: int
) -> tuple[Fault, ...]:
    """The faults that fall on this launch."""
    mine = []
    for number, fault in enumerate(faults):
        launches = fault.get("launch")
        wanted = launches if isinstance(launches, (list, tuple)) else [launches]
        if "arm" in fault and not (fault["arm"] == arm or fnmatch.fnmatchcase(arm, str(fault["arm"]))):
            continue
        if any(levels.get(factor) != level for factor, level in (fault.get("levels") or {}).items()):
            continue
        if launches is not None and launch_index not in wanted:
            continue
        if fault.get("block") is not None and fault["block"] != block:
            continue
        if "share" in fault and random.Random(f"{seed}/fault/{number}/{launch_index}/{arm}").random() >= float(fault["share"]):
            continue
        kind = str(fault["kind"])
        timed = fault.get("after_s") is not None or fault.get("after_requests") is not None
        load = timed or kind in UNDER_LOAD or fault.get("at") == "load"
        mine.append(
            Fault(
                kind=kind,
                at="load" if load else str(fault.get("at") or DEFAULT_STAGE.get(kind, "graphs")),
                after_s=fault.get("after_s"),
                after_requests=fault.get("after_requests") if timed or not load else DEFAULT_REQUESTS,
                value=float(fault.get("value") or 0.0),
            )
        )
    return tuple(mine)
