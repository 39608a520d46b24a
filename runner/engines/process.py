"""What /proc says about processes. A process is a pid *and* its start time; a zombie is gone.

Only os-level modules are imported here: the guard's process loads this file and must be up in a few hundredths of a second.
Source of the fields: proc(5), /proc/<pid>/stat.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator

TOKEN_VARIABLE = "RUNNER_LAUNCH_TOKEN"  # noqa: S105
"""Every process that the runner starts, and what it starts itself, carries this variable: the mark of ownership."""


class Seen:
    """One process at one moment. `start` is in clock ticks since boot, `state` the letter of proc(5)."""

    __slots__ = ("name", "pid", "ppid", "session", "start", "state")

    def __init__(self, pid: int, name: str, state: str, ppid: int, session: int, start: int) -> None:
        self.pid, self.name, self.state, self.ppid, self.session, self.start = pid, name, state, ppid, session, start

    @property
    def live(self) -> bool:
        return self.state not in "ZXx"

    def __repr__(self) -> str:
        return f"Seen(pid={self.pid}, name={self.name!r}, state={self.state}, ppid={self.ppid}, start={self.start})"


def look(pid: int) -> Seen | None:
    """The process with this pid, zombies included, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except (OSError, ProcessLookupError):
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    opened, closed = text.find("("), text.rfind(")")
    rest = text[closed + 2 :].split()
    return Seen(pid, text[opened + 1 : closed], rest[0], int(rest[1]), int(rest[3]), int(rest[19]))


def start_of(pid: int) -> int | None:
    """Start time in clock ticks since boot, or None when there is no such process."""
    seen = look(pid)
    return None if seen is None else seen.start


def is_live(pid: int, start: int | None = None) -> bool:
    """True when this very process runs: the start time must match where one is given, and zombies are gone."""
    seen = look(pid)
    return seen is not None and seen.live and (start is None or seen.start == start)


def everything() -> Iterator[Seen]:
    """Every process, zombies included."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            seen = look(int(name))
            if seen is not None:
                yield seen


def descendants(roots: Iterable[int], include_roots: bool = False) -> list[Seen]:
    """Live descendants of `roots`, parents before children. The walk goes through zombies, which may have live children."""
    children: dict[int, list[Seen]] = {}
    seen_roots: list[Seen] = []
    wanted = set(roots)
    for seen in everything():
        children.setdefault(seen.ppid, []).append(seen)
        if seen.pid in wanted:
            seen_roots.append(seen)
    found = list(seen_roots) if include_roots else []
    queue = [child for root in wanted for child in children.get(root, ())]
    known = set(wanted)
    while queue:
        seen = queue.pop(0)
        if seen.pid in known:
            continue
        known.add(seen.pid)
        found.append(seen)
        queue += children.get(seen.pid, ())
    return [seen for seen in found if seen.live]


def environment(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty when it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (word.decode("utf-8", "replace").partition("=") for word in words if b"=" in word)
    return {name: value for name, _, value in pairs}


def user_of(pid: int) -> int | None:
    """The user that a process runs as, or None when there is none."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def marked(token: str) -> list[Seen]:
    """Live processes whose environment carries this token."""
    return [seen for seen in everything() if seen.live and environment(seen.pid).get(TOKEN_VARIABLE) == token]


def command_line(pid: int) -> str:
    """The words of the command line joined by blanks, or '' when there is no such process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def send(pid: int, start: int, number: int) -> bool:
    """Signals exactly this process: the handle is opened first and the start time compared after, so a reused pid is safe.
    False when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return _send_by_pid(pid, start, number)
    try:
        if not is_live(pid, start):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _send_by_pid(pid: int, start: int, number: int) -> bool:
    if not is_live(pid, start):
        return False
    with contextlib.suppress(OSError):
        os.kill(pid, number)
        return True
    return False


def send_all(processes: Iterable[Seen], number: int) -> int:
    """Signals each; how many were reached."""
    return sum(send(seen.pid, seen.start, number) for seen in processes)


def boot_id() -> str:
    """Changes with every boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def pid_namespace() -> str:
    """Pids mean nothing outside their namespace (a container shares the boot id with its host, but not the pids)."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return "unknown"


def wait_until_gone(processes: Iterable[Seen], timeout: float) -> bool:
    """True when none of these lives any more within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    left = list(processes)
    while True:
        left = [seen for seen in left if is_live(seen.pid, seen.start)]
        if not left:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
