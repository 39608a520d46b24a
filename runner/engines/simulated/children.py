"""The server's child processes: as many schedulers as ranks, and a detokenizer. They do nothing, but they are real processes, so
that who watches the tree sees what it would see: a child that was killed, one that outlives its parent, a zombie."""

import contextlib
import os
import signal
import time
from pathlib import Path

ORPHAN_LIVES_S = 120.0  # an orphan ends by itself at last, should nobody find it


class Children:
    """Forked before anything else is set up. They end when their parent does (its end of a pipe closes)."""

    def __init__(self, tp: int) -> None:
        self.names: dict[int, str] = {}
        self.dead: dict[int, int] = {}
        read, self._write = os.pipe()
        for name in [*(f"scheduler_TP{rank}" if tp > 1 else "scheduler" for rank in range(tp)), "detokenizer"]:
            pid = os.fork()
            if pid == 0:
                os.close(self._write)
                _wait_for_the_end(read, f"sglang::{name}")
            self.names[pid] = name
        os.close(read)

    def pid_of(self, name: str) -> int:
        """First child whose name starts so."""
        return next(pid for pid, each in self.names.items() if each.startswith(name))

    def poll(self) -> list[tuple[str, int, int]]:
        """Children that died since the last call: (name, pid, exit code)."""
        gone: list[tuple[str, int, int]] = []
        for pid, name in self.names.items():
            if pid in self.dead:
                continue
            with contextlib.suppress(ChildProcessError):
                reaped, status = os.waitpid(pid, os.WNOHANG)
                if reaped:
                    self.dead[pid] = os.waitstatus_to_exitcode(status)
                    gone.append((name, pid, self.dead[pid]))
        return gone

    def kill(self, name: str = "") -> None:
        """SIGKILL to the children whose name starts so."""
        for pid, each in self.names.items():
            if pid not in self.dead and each.startswith(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _wait_for_the_end(read: int, title: str) -> None:
    """Never returns."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(title)
    with contextlib.suppress(OSError):
        os.read(read, 1)
    os._exit(0)


def orphan() -> None:
    """A grandchild in a session of its own that outlives the server and ignores SIGTERM, as some schedulers did."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("sglang::scheduler_TP0")
    end = time.monotonic() + ORPHAN_LIVES_S
    while time.monotonic() < end:
        time.sleep(1.0)
    os._exit(0)
