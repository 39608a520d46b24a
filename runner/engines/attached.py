"""A server that somebody else runs, known by its URL. It is measured as it is: never restarted, never stopped, never changed."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.engines.base import LaunchFailed, LaunchOrder, Owner, Ready, Stopped
from runner.engines.diagnose import CLASSES
from runner.engines.httpclient import Gone, ServerClient
from runner.errors import UserError
from runner.records.paths import LaunchPaths
from runner.records.schema import Command, EngineIdentity, Failure
from runner.records.secrets import scrub_text
from runner.spec.engine import Deadlines, EngineSpec

# What differs between two looks at one server, or says where it runs and not what it is.
_UNSTABLE = (
    "internal_states",
    "status",
    "startup_time",
    "random_seed",
    "port",
    "nccl_port",
    "host",
    "kv_events",
    "launch_command",
    "api_key",
)
_IGNORED_OPTIONS = frozenset({"port", "host", "nccl-port", "model-path", "load-format", "watchdog-timeout"})


class AttachedEngine:
    """Implements `base.Engine` for `engine.url`."""

    kind = "attached"

    def __init__(self, spec: EngineSpec) -> None:
        if not spec.url:
            raise UserError("engine=attached needs the server's address: engine.url=http://127.0.0.1:30000")
        parts = urlsplit(spec.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"engine.url={scrub_text(spec.url)} is no address of a server; it looks like http://127.0.0.1:30000")
        self.spec = spec
        self.url = spec.url.rstrip("/")

    def identify(self) -> EngineIdentity:
        """Version from /server_info; the build hash covers the resolved arguments, since the files cannot be seen. UserError when
        nobody answers."""
        client = ServerClient(self.url)
        try:
            info = client.info()
        except Gone as gone:
            raise UserError(
                f"engine.url: no SGLang server answers there: {scrub_text(str(gone))}. Start it, or correct the address"
            ) from None
        finally:
            client.close()
        version = str(info.get("version") or self.spec.version or "unknown")
        stable = {name: value for name, value in info.items() if name not in _UNSTABLE}
        build = hashlib.sha256(json.dumps(stable, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return EngineIdentity(kind="attached", version=version, build=build, simulated=info.get("simulated") is True)

    def start(self, order: LaunchOrder, owner: Owner) -> "AttachedServer":
        """Attaches. Raises UserError when the order asks for anything that the server is not: it cannot be restarted."""
        refuse_treatment(order, self._info())
        return AttachedServer(self.url, order, self.spec.deadlines)

    def _info(self) -> dict[str, Any]:
        client = ServerClient(self.url)
        try:
            return client.info()
        except Gone as gone:
            raise LaunchFailed(_gone(str(gone))) from None
        finally:
            client.close()


def refuse_treatment(order: LaunchOrder, info: Mapping[str, Any]) -> None:
    """Raises UserError naming each thing that the arm sets and the running server has not (or that nobody can tell)."""
    asked: list[str] = [f"patch {name}" for name in order.patches]
    if order.overlay:
        asked.append("an overlay of the engine's source")
    given = {**order.node.env, **order.model.env, **order.engine.env}
    asked += [f"variable {name}={value}" for name, value in order.env.items() if given.get(name) != value]
    for name, value in order.options.items():
        if name in _IGNORED_OPTIONS:
            continue
        field = name.replace("-", "_")
        if not _same(info.get(field), value) and not (field not in info and value in (None, False)):
            asked.append(f"--{name} {value} (the server has {info.get(field, 'no such argument')})")
    if asked:
        raise UserError(
            f"arm {order.arm} cannot be measured on an attached server, which is never restarted; it asks for {'; '.join(asked)}. "
            f"Measure the baseline as the server runs (write its options there, or none), or use engine=sglang"
        )


def _same(has: Any, wanted: Any) -> bool:
    if isinstance(has, (bool, type(None))) or isinstance(wanted, (bool, type(None))):
        return bool(has) == bool(wanted) if isinstance(wanted, bool) else has == wanted
    if isinstance(has, (list, tuple)):
        return [str(each) for each in has] == [str(each) for each in (wanted if isinstance(wanted, (list, tuple)) else [wanted])]
    try:
        return float(has) == float(wanted)
    except (TypeError, ValueError):
        return str(has) == str(wanted)


def _gone(line: str) -> Failure:
    known = CLASSES["unknown"]
    return Failure(
        kind="unknown", confidence=0.1, line=scrub_text(line), cause="the attached server does not answer", remedy=known.remedy, retry="no"
    )


class AttachedServer:
    """Implements `base.Server` for a server that is not ours. Its log is not ours either: the launch's log says where to look."""

    def __init__(self, url: str, order: LaunchOrder, deadlines: Deadlines) -> None:
        self.url, self.deadlines = url, deadlines
        self.log = LaunchPaths(Path(order.folder)).server_log
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self.command = Command(argv=("attached", scrub_text(url)))
        self._client = ServerClient(url)

    def wait_ready(self, progress: Callable[[str], None] = lambda _: None) -> Ready:
        """Waits for /health up to the warm-up deadline. Raises LaunchFailed."""
        began = time.monotonic()
        progress("warmup")
        while not self._client.healthy():
            if time.monotonic() - began > self.deadlines.warmup_s:
                raise LaunchFailed(_gone(f"{self.url}/health did not answer 200 for {self.deadlines.warmup_s:g} s"))
            time.sleep(0.1)
        progress("ready")
        return Ready(pid=None, url=self.url, stages={"ready": round(time.monotonic() - began, 4)})

    def describe(self) -> dict[str, Any]:
        """The body of /server_info, secrets removed. Raises LaunchFailed when the server is gone."""
        try:
            return self._client.info()
        except Gone as gone:
            raise LaunchFailed(_gone(str(gone))) from None

    def metrics(self) -> str:
        try:
            return self._client.metrics()
        except Gone:
            return ""

    def reset(self) -> bool:
        """Flushes the prefix cache; False while somebody's requests run."""
        deadline = time.monotonic() + 2.0
        while True:
            try:
                if self._client.flush():
                    return True
            except Gone:
                return False
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    def alive(self) -> bool:
        """True while it answers /model_info (cheap; /health may generate a token)."""
        try:
            self._client.model_info(timeout=5.0)
        except Gone:
            return False
        return True

    def exit_code(self) -> int | None:
        """Unknown: it is somebody else's process."""
        return None

    def fallen(self) -> Failure | None:
        """None while it answers. It is never ended."""
        return None if self.alive() else _gone(f"{self.url} answers no more")

    def stop(self) -> Stopped:
        """Leaves it running, and aborts nothing: requests of others may be under way."""
        self._client.close()
        return Stopped(how="left_running", seconds=0.0)
