"""The owner's side of the guard: processes that end with whoever asked for them, whichever way that one dies (design 4b).

`GuardedOwner` starts `guardian.py` as a process of its own, detached, and asks it for servers. See there for who watches whom.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.engines import process
from runner.engines.ledger import Entry, Ledger

START_S = 20.0


def readable(descriptors: Sequence[int], timeout: float) -> list[int]:
    """Those of `descriptors` with something to read or at their end, within `timeout` seconds. (`select` stops at 1024.)"""
    poll = select.poll()
    for number in descriptors:
        poll.register(number, select.POLLIN | select.POLLHUP)
    return [number for number, _ in poll.poll(max(0.0, timeout) * 1000)]


class GuardBroken(OSError):
    """The guard could not be started or did not answer."""


class GuardedProcess:
    """One process under a keeper. `pid` is the process asked for, `keeper` its keeper, `token` marks the tree."""

    def __init__(self, channel: socket.socket, launch: str, token: str, ledger: Ledger, at_end: Sequence[str]) -> None:
        self._channel, self.launch, self.token, self._ledger, self._at_end = channel, launch, token, ledger, at_end
        self._buffer = b""
        self._exit: int | None = None
        self._finished = threading.Event()
        self._empty = False
        self.pid = 0
        self.start = 0
        self.keeper: process.Seen | None = None
        self.error: tuple[int, str] | None = None
        self._known: dict[int, int] = {}

    # --- said by the keeper, read by the owner's watching thread -------------------------------------------------
    def word(self, timeout: float) -> dict[str, Any] | None:
        """The keeper's next word; None at end of file. Raises GuardBroken when it stays silent."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            if not readable([self._channel.fileno()], deadline - time.monotonic()):
                raise GuardBroken(f"the guard did not answer for {timeout:g} s")
            data = self._channel.recv(1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def hear(self) -> None:
        """Takes in what is there; ends when the keeper has gone."""
        while True:
            try:
                words = self.word(0.0)
            except GuardBroken:
                return
            except OSError:
                words = None
            if words is None:
                self._keeper_gone()
                return
            if "exit" in words:
                self._exit = int(words["exit"])
            if words.get("done"):
                if self._exit is None:
                    self._exit = -signal.SIGKILL
                self._ledger.gone(self.token)
                self._empty = True
                self._finished.set()

    def _keeper_gone(self) -> None:
        """After `done` this is the normal end. Without it somebody killed the keeper: what it kept is ended from here too."""
        if not self._finished.is_set():
            self._end_leftovers()
            if self._exit is None:
                self._exit = -signal.SIGKILL
            self._empty = not self._members()
            if self._empty:
                self._ledger.gone(self.token)
            self._finished.set()
        with contextlib.suppress(OSError):
            self._channel.close()

    def _end_leftovers(self) -> None:
        """The keeper's socket is at its end, a moment before the keeper itself is: wait for that, then end what it kept."""
        if self.keeper is not None:
            process.wait_until_gone([self.keeper], 2.0)
        deadline = time.monotonic() + 5
        while (left := self._members()) and time.monotonic() < deadline:
            process.send_all(left, signal.SIGKILL)
            process.wait_until_gone(left, 0.2)
        if self._at_end:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(self._at_end, timeout=20, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    @property
    def closed(self) -> bool:
        return self._finished.is_set() and self._channel.fileno() == -1

    # --- OwnedProcess ---------------------------------------------------------------------------------------------
    def poll(self) -> int | None:
        """Exit code (negative: signal) or None while alive."""
        return self._exit

    def _members(self) -> list[process.Seen]:
        members: list[process.Seen] = []
        keeper = self.keeper
        if keeper is not None and process.is_live(keeper.pid, keeper.start):
            # Two looks: a process that changes its parent between two reads of /proc is missed by one.
            members = process.descendants([keeper.pid]) or process.descendants([keeper.pid])
        if not members and (keeper is None or not process.is_live(keeper.pid, keeper.start)):
            # Asked again: a keeper that died just now has given its children away, and looked as if it had none.
            known = [seen for pid, start in self._known.items() if (seen := process.look(pid)) and seen.live and seen.start == start]
            members = [*known, *process.descendants([seen.pid for seen in known]), *process.marked(self.token)]
        unique = {seen.pid: seen for seen in members}
        self._known.update({seen.pid: seen.start for seen in unique.values()})
        return list(unique.values())

    def tree(self) -> list[int]:
        """Live pids of the whole tree, double forks included, zombies left out."""
        return [seen.pid for seen in self.members()]

    def members(self) -> list[process.Seen]:
        """The live processes of the tree."""
        return [] if self._empty else self._members()

    def note_children(self, members: Sequence[process.Seen]) -> None:
        """Writes the tree as it was seen to the ledger, so that each member is known by pid and start time."""
        self._ledger.add_children(self.launch, self.token, [seen for seen in members if seen.pid != self.pid])

    def terminate(self) -> None:
        """SIGTERM to the process asked for (its children are its own business)."""
        process.send(self.pid, self.start, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole tree, again and again while it forks. The keeper does it, so that its own last command (`at_end`) is
        not hit; without a keeper it is done from here."""
        if not self._finished.is_set():
            try:
                self._channel.sendall(b'{"kill": true}\n')
            except OSError:
                self._end_leftovers()

    def wait_gone(self, timeout: float) -> bool:
        """True when no process of the tree lives any more, and `at_end` has run."""
        deadline = time.monotonic() + timeout
        while self.tree():
            if time.monotonic() >= deadline:
                return False
            self._finished.wait(0.01)
        return self._finished.wait(max(0.5, deadline - time.monotonic()))


class GuardedOwner:
    """Ends every process it started when this process dies. One guard lives as long as the owner; `lock_fd` is the node
    lock's descriptor, held by guard, keepers and servers, so that an orphan keeps the node locked."""

    def __init__(self, ledger: Ledger, lock_fd: int | None = None, grace: float = 3.0) -> None:
        self.ledger, self.grace = ledger, grace
        self._lock_fd = lock_fd
        self._mutex = threading.RLock()
        self._processes: list[GuardedProcess] = []
        self._closed = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._channel: socket.socket | None = None
        self.guard_pid: int | None = None
        self._start_guard()
        self._watcher = threading.Thread(target=self._watch, name="guard-watch", daemon=True)
        self._watcher.start()

    def _start_guard(self) -> None:
        """A fresh interpreter, not a fork of this (threaded) process. Raises GuardBroken."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        lock = -1 if self._lock_fd is None else self._lock_fd
        program = str(Path(__file__).with_name("guardian.py"))
        argv = [sys.executable, "-I", "-S", program, str(theirs.fileno()), str(os.getpid()), str(lock)]
        descriptors = [theirs.fileno(), *([lock] if lock >= 0 else [])]
        with theirs:
            first = subprocess.Popen(
                argv,
                pass_fds=descriptors,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
            )
        line = ours.recv(4096) if readable([ours.fileno()], START_S) else b""
        if not line:
            first.kill()
            _, errors = first.communicate()
            raise GuardBroken(f"the guard process did not start: {errors.decode(errors='replace').strip()[-400:]}")
        first.wait()
        if first.stderr is not None:
            first.stderr.close()
        words = json.loads(line)
        self._channel, self.guard_pid = ours, int(words["pid"])
        self.ledger.add(Entry(int(words["pid"]), int(words["start"]), "guard"))

    def spawn(
        self,
        argv: list[str],
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        at_end: Sequence[str] = (),
        container: dict[str, str] | None = None,
    ) -> GuardedProcess:
        """Starts argv (no shell) in its own session, stdout and stderr appended to `log`. `env` is the whole environment.

        It is in the ledger before it runs. `at_end` is run once when the tree is gone, whoever ended it (a container is
        ended by its id; `container` names runtime and cidfile for the ledger). Raises FileNotFoundError or PermissionError when it cannot be executed, GuardBroken."""
        with self._mutex:
            if self._closed:
                raise GuardBroken("this owner was closed")
            token = uuid.uuid4().hex
            log.parent.mkdir(parents=True, exist_ok=True)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                self._ask_guard([theirs.fileno(), log_fd])
            finally:
                theirs.close()
                os.close(log_fd)
            order = {
                "argv": argv,
                "env": {**env, process.TOKEN_VARIABLE: token},
                "cwd": None if cwd is None else str(cwd),
                "at_end": list(at_end),
                "grace": self.grace,
            }
            child = GuardedProcess(ours, log.parent.name, token, self.ledger, at_end)
            try:
                self._introduce(child, order, container)
            except BaseException:
                ours.close()  # the keeper ends what it has and itself
                raise
            self._processes.append(child)
            os.write(self._wake_write, b"n")
            return child

    def _introduce(self, child: GuardedProcess, order: dict[str, Any], container: dict[str, str] | None) -> None:
        child._channel.sendall(json.dumps(order).encode() + b"\n")
        words = child.word(START_S)
        if words is None:
            raise GuardBroken("the keeper ended before it started anything")
        child.pid, child.start = int(words["pid"]), int(words["start"])
        seen = process.look(child.pid)
        child.keeper = None if seen is None else process.look(seen.ppid)
        child._known = {child.pid: child.start}
        if child.keeper is not None:
            self.ledger.add(Entry(child.keeper.pid, child.keeper.start, "keeper", child.launch, child.token))
        self.ledger.add(Entry(child.pid, child.start, "server", child.launch, child.token, container))
        child._channel.sendall(b'{"go": true}\n')
        words = child.word(START_S)
        if words is None:
            raise GuardBroken("the keeper ended before the process ran")
        if "error" in words:
            number, text = words["error"]
            self.ledger.gone(child.token)
            raise OSError(number, text.partition("] ")[2] or text, order["argv"][0]) if number else GuardBroken(text)

    def end_launch(self, launch: str) -> None:
        """SIGKILL to everything that was spawned for this launch (the name of its log's folder)."""
        with self._mutex:
            mine = [child for child in self._processes if child.launch == launch]
        for child in mine:
            child.kill()

    def _ask_guard(self, descriptors: list[int]) -> None:
        for attempt in (1, 2):
            if self._channel is None:
                self._start_guard()
            assert self._channel is not None
            try:
                socket.send_fds(self._channel, [b"s"], descriptors)
                return
            except OSError:
                self._channel.close()
                self._channel = None
                if attempt == 2:
                    raise GuardBroken("the guard does not take orders") from None

    def _watch(self) -> None:
        """Hears every keeper, and notices the guard's own death. Runs in a thread until `close`."""
        while True:
            with self._mutex:
                self._processes = [child for child in self._processes if not child.closed]
                waiting = {child._channel.fileno(): child for child in self._processes if child._channel.fileno() >= 0}
                channel = self._channel
            watched = [*waiting, self._wake_read, *([channel.fileno()] if channel is not None and channel.fileno() >= 0 else [])]
            try:
                ready = readable(watched, 5.0)
            except OSError:
                continue
            for number in ready:
                if number == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        if b"q" in os.read(self._wake_read, 512):
                            return
                elif number in waiting:
                    waiting[number].hear()
                else:
                    self._guard_spoke(channel)

    def _guard_spoke(self, channel: socket.socket | None) -> None:
        """The guard says nothing after its start, so this is its end. Its keepers end their trees by themselves; the next
        spawn starts a new guard."""
        with self._mutex:
            if channel is not None and channel is self._channel:
                channel.close()
                self._channel = None

    def close(self) -> None:
        """Ends everything that was spawned, and the guard. Idempotent. Blocks until nothing lives."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            left = list(self._processes)
            channel = self._channel
        for child in left:
            with contextlib.suppress(OSError):
                child._channel.sendall(b'{"end": true}\n')
        deadline = time.monotonic() + self.grace + 25
        for child in left:
            while not child._finished.is_set() and time.monotonic() < deadline:
                time.sleep(0.005)
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"q")
        self._watcher.join(timeout=10)
        if channel is not None:
            channel.close()
        # Guard and keepers hold the node lock: who closes must find the node free afterwards.
        guard = process.look(self.guard_pid) if self.guard_pid is not None else None
        process.wait_until_gone([seen for seen in (guard, *(child.keeper for child in left)) if seen is not None], 5.0)
        if not any(child.tree() for child in left):
            self.ledger.close()
        for number in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(number)

    def __enter__(self) -> "GuardedOwner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
