"""One server of ours that speaks SGLang's HTTP and log language: ready, describe, flush, stop. See `base.Server`."""

import re
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from runner.engines import ports, process, sharedmemory
from runner.engines.activity import Watch, is_compiler
from runner.engines.base import LaunchFailed, OwnedProcess, Ready, Stopped
from runner.engines.diagnose import CLASSES, HEALTHY, Diagnosis, diagnose
from runner.engines.httpclient import Gone, ServerClient
from runner.engines.stages import LogTail, Overdue, StageTracker
from runner.records.schema import Command, Failure
from runner.spec.engine import Deadlines

TICK_S = 0.01
PORT_LOOK_S = 1.0
DYING_S = 20.0
LOG_SAYS_S = 0.1
LAST_WORDS_S = 5.0
"""What the engine gets to end itself, and to say why, once one of its processes has died."""
_DRAINING = re.compile(r"Remaining number of requests:?\s*(\d+)")
_TRANSIENT = ("resource_tracker", "compile_worker")


def silent(_: str) -> None:
    """Takes no notice of a stage."""


class HttpServer:
    """Implements `base.Server` for a process of ours. `memory_free(timeout)` waits for the GPUs (see `gpus.py`).

    `also_ours`: pids beside the process's own tree, with all that descends from them (a container's first process).
    `trust_unknown`: the port's owner may be unreadable (another user's container); then a free port before is all that is known."""

    def __init__(
        self,
        owned: OwnedProcess,
        port: int,
        log: Path,
        command: Command,
        deadlines: Deadlines,
        *,
        caches: Sequence[Path] = (),
        memory_free: Callable[[float], bool] | None = None,
        also_ours: Callable[[], Collection[int]] = tuple,
        trust_unknown: bool = False,
        started: float | None = None,
    ) -> None:
        self.url = f"http://{ports.LOOPBACK}:{port}"
        self.log, self.command, self.deadlines = log, command, deadlines
        self._owned, self._port, self._memory_free, self._trust_unknown = owned, port, memory_free, trust_unknown
        self._also_ours = also_ours
        self._client = ServerClient(self.url)
        self._tail = LogTail(log)
        self._tracker = StageTracker(deadlines)
        self._watch = Watch(self._members, caches)
        self._started = time.monotonic() if started is None else started
        self._at_ready: list[process.Seen] = []
        self._ready = False
        self._stopped: Stopped | None = None
        self._foreign_looks = 0
        self._shm_before = sharedmemory.present()
        self._shm: frozenset[str] = frozenset()

    # --- start ---------------------------------------------------------------------------------------------------
    def wait_ready(self, progress: Callable[[str], None] = silent) -> Ready:
        """Blocks until the server serves and our tree owns the port. Raises LaunchFailed; the caller then calls `stop`."""
        shown = ""
        look_at = port_at = time.monotonic() + 1.0
        dying_since: float | None = None
        while True:
            code = self._owned.poll()
            lines, _ = self._tail.new_lines()
            self._tracker.feed(lines)
            if self._tracker.stage != shown:
                shown = self._tracker.stage
                progress(shown)
            if code is not None:
                raise self._failed(exit_code=code)
            if self._tracker.stage == "ready" and not self._tracker.dying and self._serves():
                return self._became_ready()
            now = time.monotonic()
            if now >= port_at:
                port_at = now + PORT_LOOK_S
                self._refuse_foreign_port()
            if now >= look_at:
                look_at = now + 1.0
                if self._tracker.silent_for > 1.0:
                    self._tracker.note(self._watch.look())
                if self._tracker.overdue() is not None:
                    self._tracker.note(self._watch.look(at_once=True))
                overdue = self._tracker.overdue()
                if overdue is not None:
                    raise self._failed(overdue=overdue)
            dying_since = (dying_since or now) if self._tracker.dying else None
            if dying_since is not None and now - dying_since > DYING_S:
                raise self._failed()  # it said that it dies and does not: its parent waits for a dump
            time.sleep(TICK_S)

    def _serves(self) -> bool:
        """The log says ready. So must the port's owner and /health: a server that lost its port logs the same line."""
        members = self._members()
        owner = ports.owner_of(self._port, [seen.pid for seen in members])
        self._at_ready = [seen for seen in members if not self._transient(seen)]
        ours = owner.who == "ours" or (owner.who == "unknown" and self._trust_unknown)
        return ours and self._client.healthy()

    def _port_owner(self) -> ports.PortOwner:
        return ports.owner_of(self._port, [seen.pid for seen in self._members()])

    def _refuse_foreign_port(self) -> None:
        """Somebody else listens on our port: the server would load for minutes and then fail to bind."""
        owner = self._port_owner()
        strange = owner.who == "foreign" or (owner.who == "unknown" and not self._trust_unknown)
        self._foreign_looks = self._foreign_looks + 1 if strange else 0
        if self._foreign_looks >= 2:
            raise self._port_taken(owner)

    def _port_taken(self, owner: ports.PortOwner) -> LaunchFailed:
        known = CLASSES["port_in_use"]
        line = f"port {self._port} is taken by {owner}"
        failure = Failure(
            kind="port_in_use",
            confidence=0.95,
            line=line,
            cause=known.cause,
            remedy=known.remedy,
            retry="at_once",  # the next launch takes another port
            stage=self._tracker.stage,
            exit_code=self._owned.poll(),
        )
        return LaunchFailed(failure, self._tracker.durations())

    def _became_ready(self) -> Ready:
        self._ready = True
        self._note_shared_memory()
        note = getattr(self._owned, "note_children", None)
        if note is not None:
            note(self._at_ready)
        stages = self._tracker.durations()
        return Ready(pid=self._owned.pid, url=self.url, stages={**stages, "ready": round(time.monotonic() - self._started, 4)})

    def _note_shared_memory(self) -> None:
        self._shm |= sharedmemory.mapped(seen.pid for seen in self._members()) - self._shm_before

    @staticmethod
    def _transient(seen: process.Seen) -> bool:
        """Compilers and the like come and go without the server being ill."""
        return is_compiler(seen) or any(word in process.command_line(seen.pid) for word in _TRANSIENT)

    def _members(self) -> list[process.Seen]:
        beside = self._also_ours()
        members = process.descendants(beside, include_roots=True) if beside else []
        seen_by_owner = getattr(self._owned, "members", None)
        if seen_by_owner is not None:
            return members + list(seen_by_owner())
        return members + [seen for pid in self._owned.tree() if (seen := process.look(pid)) is not None and seen.live]

    # --- failure -------------------------------------------------------------------------------------------------
    def _failed(self, exit_code: int | None = None, overdue: Overdue | None = None) -> LaunchFailed:
        """What happened, from the log and from what is known beside it."""
        text = self._tail.whole()
        known: dict[str, object] = {
            "process_alive": exit_code is None,
            "stage": self._tracker.stage,
            "was_ready": self._ready,
            "silent_for_s": round(self._tracker.silent_for, 1),
            "compiling": self._tracker.compiling,
        }
        if exit_code is not None:
            known["exit_code"] = exit_code
        if overdue is not None:
            known |= {"deadline": overdue.limit_name, "deadline_s": overdue.limit_s, "compiling": overdue.compiling}
            known["silent_for_s"] = round(overdue.silent_for_s, 1)
        found = diagnose(text, known)
        if found.kind in HEALTHY:
            found = self._lost_child() or diagnose("", known)
        failure = found.failure(stage=self._tracker.stage, exit_code=exit_code)
        if overdue is not None and not failure.line:
            failure = failure.model_copy(update={"line": str(overdue)})
        if not failure.line:
            last = [line for line in text.splitlines() if line.strip()][-1:]
            said = f"exit code {exit_code}" if exit_code is not None else "it says that it ends, and lives on"
            failure = failure.model_copy(update={"line": "".join(last) or f"{said}, no log line"})
        return LaunchFailed(failure, self._tracker.durations())

    def _lost_child(self) -> Diagnosis | None:
        """A child that was there at ready and is gone while the parent lives: killed from outside, or it died without a word."""
        if self._owned.poll() is not None:
            return None
        for seen in self._at_ready:
            if not process.is_live(seen.pid, seen.start):
                kind = "detokenizer_died" if seen.name.startswith("sglang::deto") else "scheduler_died"
                line = f"{seen.name} (pid {seen.pid}) is gone, its server lives on"
                known = CLASSES[kind]
                return Diagnosis(kind=kind, confidence=0.8, line=line, cause=known.cause, remedy=known.remedy, retry=known.retry)
        return None

    def failure(self) -> LaunchFailed:
        """The diagnosed failure of a server that was ready once, from its log as it is now."""
        self._tracker.feed(self._tail.new_lines()[0])
        return self._failed(exit_code=self._owned.poll())

    # --- while it serves -----------------------------------------------------------------------------------------
    def describe(self) -> dict[str, Any]:
        """The body of /server_info, secrets removed. Raises LaunchFailed when the server is gone."""
        try:
            return self._client.info()
        except Gone:
            raise self.failure() from None

    def metrics(self) -> str:
        """The text of /metrics, or '' where the engine has none or does not answer."""
        try:
            return self._client.metrics()
        except Gone:
            return ""

    def reset(self) -> bool:
        """Flushes the prefix cache. 400 means that requests still run: asked again for two seconds. A 200 is believed unless the
        log says that nothing was flushed."""
        deadline = time.monotonic() + 2.0
        while True:
            tail = LogTail(self.log)
            tail.offset = self.log.stat().st_size if self.log.exists() else 0
            try:
                flushed = self._client.flush()
            except Gone:
                return False
            if flushed and self._log_agrees(tail):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    @staticmethod
    def _log_agrees(tail: LogTail) -> bool:
        deadline = time.monotonic() + LOG_SAYS_S
        while time.monotonic() < deadline:
            for line in tail.new_lines()[0]:
                if "Cache not flushed" in line:
                    return False
                if "Cache flushed successfully" in line:
                    return True
            time.sleep(0.01)
        return True

    def alive(self) -> bool:
        """True while the parent and every child that was there at ready live."""
        return self._owned.poll() is None and all(process.is_live(seen.pid, seen.start) for seen in self._at_ready)

    def exit_code(self) -> int | None:
        return self._owned.poll()

    def fallen(self) -> Failure | None:
        """None while `alive`. Else the engine gets a moment to end itself and to say why; then what is left is ended, and with it
        every connection: an HTTP server without its scheduler accepts requests and never answers."""
        if self.alive():
            return None
        lost = self._lost_child()
        deadline = time.monotonic() + LAST_WORDS_S
        while self._owned.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        failure = self.failure().failure
        if lost is not None and failure.kind == "unknown":
            failure = lost.failure(stage=failure.stage, exit_code=failure.exit_code)
        self._owned.kill()
        return failure

    # --- stop ----------------------------------------------------------------------------------------------------
    def stop(self) -> Stopped:
        """Abort, SIGTERM, deadline, SIGKILL of the tree, wait until no process lives and the GPUs are free. Never raises.

        SIGTERM alone drains without a time limit (SGLang waits for running requests), hence the abort before and the
        deadlines after."""
        if self._stopped is None:
            began = time.monotonic()
            try:
                how = self._end()
                gone = self._owned.wait_gone(10.0)
                if gone:
                    sharedmemory.remove_unused(self._shm)
                free = self._memory_free(self.deadlines.memory_free_s) if self._memory_free is not None else None
            except Exception:  # noqa: BLE001 - a stop that raises would leave the server behind
                how, free = "killed", None
                self._owned.kill()
                gone = self._owned.wait_gone(10.0)
            self._client.close()
            seconds = round(time.monotonic() - began, 4)
            how = how if gone else "left_running"
            self._stopped = Stopped(how=how, seconds=seconds, exit_code=self._owned.poll(), memory_free=free)
        return self._stopped

    def _end(self) -> str:
        if self._owned.poll() is not None:
            self._owned.kill()  # what a dead parent left
            return "already_dead"
        if self._ready:
            self._note_shared_memory()
            self._client.abort_all()
        tail = LogTail(self.log)
        tail.offset = self._tail.offset
        began = time.monotonic()
        self._owned.terminate()
        while self._owned.poll() is None:
            waited = time.monotonic() - began
            draining = waited > self.deadlines.drain_s and self._drains(tail)
            if waited > self.deadlines.terminate_s or draining:
                self._owned.kill()
                return "killed"
            time.sleep(0.01)
        if not self._owned.wait_gone(2.0):
            self._owned.kill()
        return "terminated"

    @staticmethod
    def _drains(tail: LogTail) -> bool:
        """SIGTERM counts as ignored: the server says that it waits for requests to finish."""
        left = [int(found[1]) for line in tail.new_lines()[0] if (found := _DRAINING.search(line))]
        return bool(left) and left[-1] > 0
