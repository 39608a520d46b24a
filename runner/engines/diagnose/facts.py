"""What is known beside the log, brought to one shape. Unknown keys are ignored; words for true and false are understood."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

SILENT_S = 300.0
COMPILE_DEADLINE_S = 1800.0
STOP_DEADLINE_S = 60.0


class Facts(NamedTuple):
    """None means not known. Seconds for every time."""

    exit_code: int | None = None
    alive: bool | None = None
    silent_s: float | None = None
    compiling: bool | None = None
    health: int | None = None
    oom_killed: bool = False
    proxy: bool | None = None
    stop_asked: bool = False
    stopping_s: float | None = None
    compile_deadline_s: float = COMPILE_DEADLINE_S
    gpu_foreign: bool = False
    port_foreign: bool = False
    overdue: str = ""
    stage: str = ""


def read_facts(context: Mapping[str, object] | None) -> Facts:
    """Facts of a free mapping: `exit_code`, `process_alive`, `silent_for_s`, `compiler_children`, `cache_growing`, `health`,
    `http_status`, `dmesg_oom`, `dmesg`, `http_proxy_set`, `sigterm_sent`, `stopping_for_s`, `compile_deadline_s`, `deadline` (the name of a limit that passed), `stage` and their kin."""
    given = {str(key).lower().replace("-", "_"): value for key, value in (context or {}).items()}

    def first(names: Iterable[str]) -> object:
        return next((given[name] for name in names if given.get(name) is not None), None)

    dmesg = str(first(("dmesg", "dmesg_text", "kernel_log")) or "").lower()
    children, growing = (
        first(("compiler_children", "compilers", "compiler_processes", "nvcc_running", "ninja_running", "compiling")),
        first(("cache_growing", "jit_cache_growing", "cache_grows", "compile_cache_growing")),
    )
    busy = [truth for truth in (_flag(children), _flag(growing)) if truth is not None]
    stopping = _number(
        first(("stopping_for_s", "since_sigterm_s", "seconds_since_sigterm", "stop_for_s", "sigterm_for_s", "shutdown_for_s"))
    )
    deadline = _number(first(("compile_deadline_s", "deadline_s", "compile_s")))
    code, health = (
        _number(first(("exit_code", "returncode", "rc", "exit_status"))),
        _number(first(("health", "health_status", "http_status", "health_code"))),
    )
    return Facts(
        exit_code=None if code is None else int(code),
        alive=_flag(first(("process_alive", "alive", "running", "parent_alive"))),
        silent_s=_number(first(("silent_for_s", "silent_s", "silent_for", "no_log_for_s", "idle_for_s"))),
        compiling=any(busy) if busy else None,
        health=None if health is None else int(health),
        oom_killed=bool(_flag(first(("dmesg_oom", "oom_killed", "oom_kill", "cgroup_oom"))))
        or any(word in dmesg for word in ("oom-kill", "out of memory", "killed process", "oom_reaper", "oomkilled")),
        proxy=_flag(first(("http_proxy_set", "proxy_set", "http_proxy", "https_proxy"))),
        stop_asked=bool(
            _flag(
                first(
                    ("sigterm_sent", "stop_requested", "stop_asked", "terminated_by_us", "stopped_by_us", "shutdown_requested", "sigterm")
                )
            )
        )
        or stopping is not None,
        stopping_s=stopping,
        compile_deadline_s=COMPILE_DEADLINE_S if deadline is None else deadline,
        gpu_foreign=bool(_flag(first(("foreign_process", "foreign_processes", "gpu_busy_before")))),
        overdue=str(first(("deadline", "overdue", "limit_name")) or ""),
        stage=str(first(("stage",)) or ""),
        port_foreign=bool(_flag(first(("port_foreign", "port_owned_by_other", "foreign_port_owner")))),
    )


def _flag(value: object) -> bool | None:
    if value is None:
        return None
    if isinstance(value, str):
        word = value.strip().lower()
        if word in {"", "none", "null", "unknown"}:
            return None
        return word not in {"false", "no", "0", "off", "0.0"}
    if isinstance(value, (list, tuple, dict, set)):
        return len(value) > 0
    return bool(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return 200.0 if value else 503.0
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in {"ok", "healthy", "true"}:
            return 200.0
        if word in {"unhealthy", "false", "failing", "timeout"}:
            return 503.0
        try:
            return float(word)
        except ValueError:
            return None
    return None
