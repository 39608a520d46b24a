"""The guard's own process: `python -I -S guardian.py` (design 4b). It outlives whoever asked for it, and nothing outlives it.

Two kinds of process, both detached (double fork, own session) and both subreapers:

    owner (actor, driver) ..socket.. guard ---- keeper ---- server ---- schedulers ...
                          ..socket............../

The guard forks one keeper for each server; the keeper forks the server, so everything a server leaves behind, double forks
included, becomes a child of its keeper. A keeper ends its whole tree when the owner dies (end of file on its socket), when the
guard dies (end of file on a pipe) or when it is told to; the guard ends the tree of a keeper that died. Both hold the node
lock's descriptor until they exit, so an orphan keeps the node locked.

Words on a keeper's socket, one JSON object a line. In: the order {argv, env, cwd, at_end, grace}, then {"go": true} once the
server is in the ledger, at any time {"end": true} (SIGTERM, then SIGKILL after the grace) or {"kill": true}. Out: {"pid", "start"}, {"error"} or {"running": true}, {"exit": code},
{"done": true} when no process of the tree is left.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

if __name__ == "__main__":  # run by path, outside any environment: find our own package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from runner.engines import process

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 3.0
AT_END_S = 20.0


def prctl(option: int, value: "int | bytes") -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def tell(channel: socket.socket, **words: object) -> None:
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(words).encode() + b"\n")


def exit_code_of(status: int) -> int:
    return os.waitstatus_to_exitcode(status)


class Wakeup:
    """A descriptor that becomes readable when a child ends or somebody sends SIGTERM."""

    def __init__(self) -> None:
        self.asked_to_end = False
        self.reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.writer = writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def _asked(self, *_: object) -> None:
        self.asked_to_end = True

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.reader, 512):
                pass


def close_all_but(kept: "set[int]") -> None:
    """Closes every descriptor above 2 that is not in `kept`: an inherited socket would hide the owner's death."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        number = int(name)
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


class Keeper:
    """Owns one server's tree. Runs in its own process and returns when no process of the tree is left."""

    def __init__(self, channel: socket.socket, log: int, guard: int, lock: "int | None", wakeup: Wakeup) -> None:
        self.channel, self.log, self.guard, self.lock, self.wakeup = channel, log, guard, lock, wakeup
        self.buffer = b""
        self.root: int | None = None
        self.root_ended = False
        self.childless = False
        self.at_end: list[str] = []
        self.environment: dict[str, str] = {}
        self.grace = GRACE_S

    def run(self) -> None:
        order = self._line(timeout=30)
        if order is None:
            return
        self.at_end = [str(word) for word in order.get("at_end") or []]
        self.grace = float(order.get("grace") or GRACE_S)
        self.environment = dict(order["env"])
        if self._start(order):
            self._watch()
        self._run_at_end()
        tell(self.channel, done=True)

    def _line(self, timeout: float) -> "dict[str, Any] | None":
        deadline = time.monotonic() + timeout
        while b"\n" not in self.buffer:
            watched = [self.channel.fileno(), self.guard]
            ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
            data = self.channel.recv(1 << 16) if watched[0] in ready else b""
            if not data:
                return None
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        words = json.loads(line)
        return words if isinstance(words, dict) else None

    def _start(self, order: "dict[str, Any]") -> bool:
        """Forks the server and lets it run once the owner has it in its ledger. False when it could not be executed."""
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._become(order, go_read, go_write, error_write)
        self.root = pid
        os.close(go_read)
        os.close(error_write)
        tell(self.channel, pid=pid, start=process.start_of(pid))
        allowed = self._line(timeout=30)
        if allowed is not None and allowed.get("go"):
            os.write(go_write, b"g")
        os.close(go_write)  # without the word the child ends itself
        error = b""
        while piece := os.read(error_read, 4096):
            error += piece
        os.close(error_read)
        if error:
            os.waitpid(pid, 0)
            self.at_end = []
            tell(self.channel, error=json.loads(error))
            return False
        if allowed is None:
            self.wakeup.asked_to_end = True
        else:
            tell(self.channel, running=True)
        return True

    def _become(self, order: "dict[str, Any]", go: int, go_write: int, error: int) -> None:
        try:
            os.setsid()
            os.close(go_write)
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    with contextlib.suppress(OSError, ValueError):
                        signal.signal(number, signal.SIG_DFL)
            if os.read(go, 1) != b"g":
                os._exit(125)
            os.dup2(self.log, 1)
            os.dup2(self.log, 2)
            if order.get("cwd"):
                os.chdir(str(order["cwd"]))
            if self.lock is not None:
                os.set_inheritable(self.lock, True)
            argv = [str(word) for word in order["argv"]]
            os.execvpe(argv[0], argv, self.environment)  # noqa: S606
        except BaseException as failed:  # noqa: BLE001
            number = failed.errno if isinstance(failed, OSError) and failed.errno else 0
            os.write(error, json.dumps([number, str(failed)]).encode())
        os._exit(127)

    def _watch(self) -> None:
        poll = select.poll()
        for number in (self.channel.fileno(), self.guard, self.wakeup.reader):
            poll.register(number, select.POLLIN | select.POLLHUP)
        while True:
            self._reap()
            if self.childless:
                return
            if self.wakeup.asked_to_end:
                self._end()
                return
            ready = {number for number, _ in poll.poll(1000)}
            self.wakeup.drain()
            word = self._listen() if self.channel.fileno() in ready else ""
            if word or self.guard in ready:
                self._end(0.0 if word == "kill" else None)
                return

    def _listen(self) -> str:
        """What the owner wants: "" (nothing), "kill", or "end", which is also what its death means."""
        try:
            data = self.channel.recv(1 << 16)
        except OSError:
            return "end"
        self.buffer += data
        if b'"kill"' in self.buffer:
            return "kill"
        return "end" if not data or b'"end"' in self.buffer else ""

    def _reap(self) -> None:
        """Takes the exit codes of ended children. No child at all is the proof that the tree is gone: orphans come to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self.root and not self.root_ended:
                self.root_ended = True
                tell(self.channel, exit=exit_code_of(status))

    def _end(self, grace: "float | None" = None) -> None:
        deadline = time.monotonic() + (self.grace if grace is None else grace)
        if grace is None:
            process.send_all(process.descendants([os.getpid()]), signal.SIGTERM)
        while not self.childless:
            self._reap()
            if time.monotonic() >= deadline:
                process.send_all(process.descendants([os.getpid()]), signal.SIGKILL)
            select.select([self.wakeup.reader], [], [], 0.05)
            self.wakeup.drain()

    def _run_at_end(self) -> None:
        """The command that ends what no signal reaches (a container, by id)."""
        if not self.at_end:
            return
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.dup2(self.log, 1)
                os.dup2(self.log, 2)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(self.at_end[0], self.at_end, self.environment)  # noqa: S606
            os._exit(127)
        deadline = time.monotonic() + AT_END_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.02)


class Guard:
    """Forks keepers, and ends what a killed keeper leaves."""

    def __init__(self, channel: socket.socket, owner: int, lock: "int | None") -> None:
        self.channel, self.lock = channel, lock
        self.wakeup = Wakeup()
        self.keepers: dict[int, int] = {}  # pid -> write end of the pipe that tells it that we live
        self.alone = False
        try:
            self.owner = os.pidfd_open(owner)
        except OSError:
            self.owner = -1

    def run(self) -> None:
        tell(self.channel, pid=os.getpid(), start=process.start_of(os.getpid()))
        poll = select.poll()
        watched = [self.channel.fileno(), self.wakeup.reader, *([self.owner] if self.owner >= 0 else [])]
        for number in watched:
            poll.register(number, select.POLLIN | select.POLLHUP)
        while not self.wakeup.asked_to_end:
            ready = {number for number, _ in poll.poll(1000)}
            self.wakeup.drain()
            self._reap()
            self._end_orphans()
            if self.channel.fileno() in ready and not self._serve():
                break
            if self.owner in ready:
                break
        self._end()

    def _serve(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.channel, 1, 2)
        except OSError:
            return False
        if data == b"s" and len(descriptors) == 2:
            for number in descriptors:  # descriptors from a socket come without close-on-exec
                os.set_inheritable(number, False)
            self._fork_keeper(*descriptors)
        return data == b"s"

    def _fork_keeper(self, socket_number: int, log: int) -> None:
        life_read, life_write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setsid()
                prctl(PR_SET_NAME, b"flag-keeper")
                prctl(PR_SET_CHILD_SUBREAPER, 1)
                os.close(life_write)
                close_all_but({socket_number, log, life_read, *([self.lock] if self.lock is not None else [])})
                channel = socket.socket(fileno=socket_number)
                Keeper(channel, log, life_read, self.lock, Wakeup()).run()
                code = 0
            os._exit(code)
        os.close(life_read)
        os.close(socket_number)
        os.close(log)
        self.keepers[pid] = life_write

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.alone = True
                return
            self.alone = False
            if pid == 0:
                return
            life = self.keepers.pop(pid, None)
            if life is not None:
                os.close(life)

    def _end_orphans(self) -> None:
        """A child of ours that is no keeper was left by a keeper that somebody killed."""
        own = os.getpid()
        orphans = [seen.pid for seen in process.everything() if seen.ppid == own and seen.pid not in self.keepers]
        if orphans:
            process.send_all(process.descendants(orphans, include_roots=True), signal.SIGKILL)

    def _end(self) -> None:
        """Keepers end their trees by themselves, within their grace; whoever is slower is ended from here."""
        for life in self.keepers.values():
            with contextlib.suppress(OSError):
                os.close(life)
        self.keepers = dict.fromkeys(self.keepers, -1)
        deadline = time.monotonic() + GRACE_S + AT_END_S + 5
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                self.keepers.pop(pid, None)
                continue
            self._end_orphans()
            if time.monotonic() > deadline:
                process.send_all(process.descendants([os.getpid()]), signal.SIGKILL)
            time.sleep(0.02)


def main(arguments: "list[str]") -> None:
    """`guardian.py CHANNEL OWNER_PID LOCK`: descriptor numbers; LOCK is -1 without a node lock."""
    channel_number, owner, lock = (int(word) for word in arguments)
    if os.fork():
        os._exit(0)  # the first of two forks: our parent is to be somebody who never ends us
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a server that inherits a blocked SIGTERM never ends by it
    prctl(PR_SET_NAME, b"flag-guard")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    kept = {channel_number, *([lock] if lock >= 0 else [])}
    close_all_but(kept)
    for number in kept:
        os.set_inheritable(number, False)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    Guard(socket.socket(fileno=channel_number), owner, lock if lock >= 0 else None).run()


if __name__ == "__main__":
    main(sys.argv[1:])
