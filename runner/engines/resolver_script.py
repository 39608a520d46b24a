"""Runs inside the engine's own interpreter, by path: what does this engine make of these arguments?

Standard library only, and nothing of the runner is imported: the engine's environment knows nothing of it. Reads one JSON
object from stdin, writes JSON lines to the descriptor that stdout had (the engine's own prints go to stderr).

in   {"mode": "resolve", "requests": [{"key", "argv", "env"}], "jobs": 2, "timeout_s": 120} or {"mode": "options"}; mode "alone" resolves
     one request without a fork
out  {"engine": {...}} once, then {"key", "ok", "resolved", ...} an arm, or {"options": [...]}

The argument module is imported once. A first child (the scout) resolves the first arm and tells which modules that pulled
in; the parent imports them too, so that the other children start from warm modules. Each arm is a fork of that parent: what
one arm changes (environment, module state) no other arm sees. Variables of an arm are set after the fork; a module that
read the environment while it was imported has seen the parent's.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_TAIL = 6000
PREFIXES_WORTH_TELLING = ("usage:",)


def plain(value: Any, depth: int = 0) -> Any:
    """JSON-able form of a resolved value; deterministic, without memory addresses."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if depth > 8:
        return type(value).__name__
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, (str, int)) else value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name, None), depth + 1) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, depth + 1) for item in value), key=str)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(), depth + 1)
    text = str(value)
    return type(value).__name__ if " object at 0x" in text or text.startswith("<function") else text


def resolved_of(arguments: Any) -> dict[str, Any]:
    """Every public field of the resolved arguments. Newer engines keep resolved values apart from the dataclass fields; their
    own dictionary (what /server_info shows) is laid over the fields when there is one."""
    known = dataclasses.is_dataclass(arguments) and not isinstance(arguments, type)
    names = [field.name for field in dataclasses.fields(arguments)] if known else list(vars(arguments))
    result = {name: plain(getattr(arguments, name, None)) for name in names if not name.startswith("_")}
    for method in ("resolved_dict", "to_resolved_dict", "to_dict"):
        own = getattr(arguments, method, None)
        if callable(own):
            try:
                extra = own()
            except Exception:  # noqa: BLE001, S112 - a helper of the engine that wants arguments is no use here
                continue
            if isinstance(extra, dict):
                result.update({str(key): plain(value) for key, value in extra.items() if not str(key).startswith("_")})
                break
    return result


def argument_module() -> Any:
    """The engine's argument module; several names are tried so that a move does not end the probing."""
    problems = []
    for name in ("sglang.srt.server_args", "sglang.srt.arg_groups.server_args", "sglang.server_args"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")) and error.name != "sglang":
                problems.append(str(error))
                continue
            raise
        if hasattr(module, "prepare_server_args"):
            return module
        problems.append(name + " has no prepare_server_args")
    raise ImportError("; ".join(problems))


def known_options(module: Any) -> dict[str, str]:
    """Option strings to the option string shown first, for every option the engine's parser takes."""
    parser = argparse.ArgumentParser(prog="probe")
    module.ServerArgs.add_cli_args(parser)
    return {text: action.option_strings[-1] for text, action in parser._option_string_actions.items()}


def abbreviations(argv: list[str], options: dict[str, str]) -> list[str]:
    """Words that are no option of this engine although argparse would take them for the only longer one."""
    found = []
    for word in argv:
        name = word.split("=", 1)[0]
        if name.startswith("--") and name not in options:
            longer = sorted({options[text] for text in options if text.startswith(name)})
            if len(longer) == 1:
                found.append(f"{name} is not an option of this engine; it was taken as an abbreviation of {longer[0]}")
    return found


def usage_error(log: str) -> str:
    """argparse's own last line, without the program's name."""
    for line in reversed(log.strip().splitlines()):
        if ": error: " in line:
            return line.split(": error: ", 1)[1].strip()
    return log.strip().splitlines()[-1] if log.strip() else "the parser ended without a message"


def kind_of(error: BaseException) -> str:
    """Class of a refusal, from the type of the exception and where its text points."""
    if isinstance(error, SystemExit):
        return "unknown_cli_option"
    if isinstance(error, (ImportError,)):
        return "import_failed"
    if isinstance(error, OSError):
        return "model_not_readable"
    if isinstance(error, (ValueError, AssertionError, NotImplementedError)):
        text = str(error).lower()
        if "model type" in text and "transformers" in text:
            return "unsupported_model"
        return "rejected_argument_combination"
    return "error"


def sentence_of(error: BaseException) -> str:
    """The engine's own words; an assertion without a message is told by its source line."""
    text = str(error).strip()
    if text:
        return text
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        name = trace.tb_frame.f_code.co_filename
        line = ""
        try:
            import linecache

            line = linecache.getline(name, trace.tb_lineno).strip()
        except Exception:  # noqa: BLE001
            line = ""
        place = f" at {pathlib.Path(name).name}:{trace.tb_lineno}" + (f": {line}" if line else "")
    return type(error).__name__ + place


def resolve_here(module: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Runs in a child: both calls that a launch makes. Returns the answer without the log."""
    answer: dict[str, Any] = {"key": request["key"], "ok": False, "resolved": {}, "environment": {}, "error": "", "kind": "", "where": ""}
    os.environ.update(request.get("env") or {})
    given = dict(os.environ)
    try:
        arguments = module.prepare_server_args(list(request["argv"]))
        if hasattr(arguments, "resolve_once"):  # newer engines resolve lazily; a launch calls this before it checks
            arguments.resolve_once()
        # A launch makes this second call too; several combinations (two-batch overlap among them) are refused only there.
        if hasattr(arguments, "check_server_args"):
            arguments.check_server_args()
        answer["resolved"] = resolved_of(arguments)
        answer["ok"] = True
    except SystemExit as error:
        answer["kind"], answer["error"] = kind_of(error), ""
    except BaseException as error:  # noqa: BLE001 - the engine's refusal is the answer
        answer["kind"], answer["error"] = kind_of(error), sentence_of(error)
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None:
            answer["where"] = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    answer["environment"] = {key: value for key, value in os.environ.items() if given.get(key) != value and not key.startswith("PYTHON")}
    return answer


class Child:
    """One forked arm: its pid, the pipe its answer comes through, and the file that takes what it prints."""

    def __init__(self, module: Any, request: dict[str, Any], tell_modules: bool = False) -> None:
        self.request = request
        self.started = time.monotonic()
        self.log = tempfile.TemporaryFile()
        self.data = b""
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(read)
                os.setpgid(0, 0)
                os.dup2(self.log.fileno(), 1)
                os.dup2(self.log.fileno(), 2)
                known = set(sys.modules)
                answer = resolve_here(module, request)
                if tell_modules:
                    answer["modules"] = sorted(set(sys.modules) - known)
                sys.stdout.flush()
                sys.stderr.flush()
                body = json.dumps(answer).encode()
                while body:
                    body = body[os.write(write, body) :]
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        self.fd = read

    def answer(self, status: int, timed_out: bool, options: dict[str, str]) -> dict[str, Any]:
        """The finished child's answer, completed from its log and exit status."""
        try:
            result: dict[str, Any] = json.loads(self.data)
        except ValueError:
            if timed_out:
                kind, error = "timeout", "no answer within the time limit"
            else:
                how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
                kind, error = "died", "the resolving process ended with " + how
            result = {
                "key": self.request["key"], "ok": False, "resolved": {}, "environment": {}, "error": error, "kind": kind, "where": "",
            }  # fmt: skip
        self.log.seek(0)
        log = self.log.read().decode("utf-8", "replace")
        self.log.close()
        if result["kind"] == "unknown_cli_option" and not result["error"]:
            result["error"] = usage_error(log)
            if "invalid choice" in result["error"] or "expected" in result["error"] or "invalid " in result["error"]:
                result["kind"] = "invalid_option_value"
        result["log"] = "" if log.startswith(PREFIXES_WORTH_TELLING) else log[-LOG_TAIL:]
        result["notes"] = abbreviations(self.request["argv"], options)
        result["seconds"] = time.monotonic() - self.started
        return result


def reap(pid: int) -> int:
    while True:
        try:
            return os.waitpid(pid, 0)[1]
        except InterruptedError:
            continue


def run_children(
    module: Any,
    requests: list[dict[str, Any]],
    jobs: int,
    timeout_s: float,
    options: dict[str, str],
    emit: Callable[[dict[str, Any]], None],
    tell_modules: bool = False,
) -> None:
    """Forks an arm each, at most `jobs` at a time; `emit` gets every answer as it comes."""
    waiting = list(requests)
    running: dict[int, Child] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            child = Child(module, waiting.pop(0), tell_modules)
            running[child.fd] = child
        ready, _, _ = select.select(list(running), [], [], 0.2)
        for fd in ready:
            child = running[fd]
            chunk = os.read(fd, 1 << 16)
            if chunk:
                child.data += chunk
                continue
            os.close(fd)
            del running[fd]
            emit(child.answer(reap(child.pid), False, options))
        now = time.monotonic()
        for fd, child in list(running.items()):
            if now - child.started > timeout_s:
                for victim in (-child.pid, child.pid):
                    try:
                        os.kill(victim, signal.SIGKILL)
                    except OSError:
                        continue
                os.close(fd)
                del running[fd]
                child.data = b""
                emit(child.answer(reap(child.pid), True, options))


def capability_seen() -> int | None:
    """Compute capability x 10 of the first GPU from NVML, without a CUDA context (a context would not survive the fork)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
            return int(major) * 10 + int(minor)
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 - no GPU or no driver is an ordinary case
        return None


def main() -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    # The folder of a script is put first on the path; nothing of it may stand in for a module of the engine.
    here = str(pathlib.Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]
    order = json.load(sys.stdin)
    started = time.monotonic()
    try:
        module = argument_module()
        options = known_options(module)
    except BaseException as error:  # noqa: BLE001 - an engine that cannot be imported is an answer
        emit({"fatal": f"{type(error).__name__}: {sentence_of(error)}", "kind": "import_failed"})
        return 1
    version = getattr(sys.modules.get("sglang"), "__version__", None)
    emit({"engine": {"version": version, "file": module.__file__, "capability": capability_seen(), "import_s": time.monotonic() - started}})
    if order["mode"] == "options":
        emit({"options": sorted(options)})
        return 0
    requests = order["requests"]
    if order["mode"] == "alone":  # for engines whose import holds a CUDA context, which a fork cannot use
        emit(dict(resolve_here(module, requests[0]), notes=abbreviations(requests[0]["argv"], options), seconds=time.monotonic() - started))
        return 0
    jobs, timeout_s = max(1, int(order["jobs"])), float(order["timeout_s"])
    if not requests:
        return 0
    # The first arm is resolved three times, first, in its turn and last: what differs between equal requests (random seed, free
    # ports, what is left of the memory) says nothing about an arm.
    scouts: list[dict[str, Any]] = []
    run_children(module, requests[:1], 1, timeout_s, options, scouts.append, tell_modules=True)
    for name in scouts[0].pop("modules", []):
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001, S112 - the children import it themselves and get the same error
            continue
    # Children that neither collect nor count garbage share the parent's memory instead of copying it page by page.
    gc.collect()
    gc.freeze()
    gc.disable()
    emit(dict(scouts[0], scout=True))
    run_children(module, requests, jobs, timeout_s, options, emit)
    run_children(module, requests[:1], 1, timeout_s, options, lambda answer: emit(dict(answer, scout=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
