"""Worker processes as the driver sees them: start, ask, end. A dead worker is ClientBroken, never a hang."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from runner.loadgen.base import ClientBroken

# A worker sends a stretch of bytes and ends with a newline; this only bounds one read.
READ_BYTES = 1 << 20
LONGEST_FOLDER = 70
START_S = 30


class Spawned(Protocol):
    """What an owner's spawn gives back (engines.base.OwnedProcess fits)."""

    pid: int

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


Spawn = Callable[..., Spawned]


def short_folder() -> str | None:
    """Where a socket's path fits (108 bytes on Linux): null for the usual folder for temporary files, else a shorter one."""
    usual = tempfile.gettempdir()
    return None if len(os.fsencode(usual)) <= LONGEST_FOLDER else "/tmp"  # noqa: S108  made inside with a name of its own


class Worker:
    """One load worker. `ask` and `answer` are split so that several can work at once."""

    def __init__(self, number: int, spawn: Spawn | None = None) -> None:
        self.number = number
        self._rest = b""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._channel: socket.socket | None = None
        argv = [sys.executable, "-m", "runner.loadgen.worker", "--number", str(number)]
        env = worker_environment(os.environ)
        if spawn is None:
            self._process: Spawned = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0, start_new_session=True
            )
            assert isinstance(self._process, subprocess.Popen) and self._process.stdin and self._process.stdout
            self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="loadgen-", dir=short_folder())
            path = Path(self._folder.name) / "channel"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
                listener.listen(1)
                listener.settimeout(0.1)
                self._process = spawn([*argv, "--connect", str(path)], env, Path(self._folder.name) / "worker.log")
                self._channel = self._await_worker(listener)
            self._channel.setblocking(True)
            self._in = self._out = self._channel.fileno()

    def _await_worker(self, listener: socket.socket) -> socket.socket:
        """The worker's connection. Raises ClientBroken when it died first or START_S are over."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return listener.accept()[0]
            except TimeoutError:
                continue
        code = self._process.poll()
        self.close()
        raise ClientBroken("the load worker did not start" + (f" (exit code {code})" if code is not None else f" within {START_S} s"))

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: Mapping[str, Any]) -> None:
        """Sends one command. Raises ClientBroken when the worker is gone."""
        data = json.dumps(command).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._in, data) :]
        except OSError:
            raise ClientBroken(f"load worker {self.number} is gone (exit code {self._process.poll()})") from None

    def answer(self, timeout: float) -> dict[str, Any]:
        """Waits for the answer. Raises ClientBroken when the worker dies, does not answer in time, or reports its own failure."""
        deadline = time.monotonic() + timeout
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise ClientBroken(f"load worker {self.number} did not answer within {timeout:.0f} s")
            try:
                data = os.read(self._out, READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise ClientBroken(f"load worker {self.number} died (exit code {self._wait()})")
            pieces.append(data)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        if not value.get("ok"):
            raise ClientBroken(f"load worker {self.number}: {value.get('error')}")
        return value

    def close(self) -> None:
        """Ends the worker. Idempotent."""
        with contextlib.suppress(OSError, ClientBroken):
            if self._process.poll() is None:
                self._process.kill()
        if isinstance(self._process, subprocess.Popen):
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process.wait()
        if self._channel is not None:
            self._channel.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _wait(self) -> int | None:
        for _ in range(20):
            code = self._process.poll()
            if code is not None:
                return code
            time.sleep(0.01)
        return None


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment: no proxies, and this package importable whatever the working folder is."""
    env = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    root = str(Path(__file__).resolve().parent.parent.parent)
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    return env
