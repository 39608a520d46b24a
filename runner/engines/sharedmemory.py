"""Shared memory that a server leaves behind: a segment in /dev/shm outlives its processes, 16 KB a launch with SGLang 0.5.15, more with
a collective library that was killed. Removed is only what this server's processes mapped, what was not there before it started,
and what nobody maps any more."""

import contextlib
import os
from collections.abc import Iterable

from runner.engines import process

FOLDER = "/dev/shm/"  # noqa: S108


def present() -> frozenset[str]:
    """Names of all segments."""
    try:
        return frozenset(os.listdir(FOLDER))  # noqa: PTH208
    except OSError:
        return frozenset()


def mapped(pids: Iterable[int]) -> frozenset[str]:
    """Names of the segments that these processes map; a process that is gone or may not be read maps none."""
    names: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                place = line.find(FOLDER)
                if place >= 0 and not line.rstrip().endswith("(deleted)"):
                    names.add(line[place + len(FOLDER) :].rstrip("\n"))
    return frozenset(names)


def remove_unused(names: Iterable[str]) -> list[str]:
    """Removes those of `names` that exist, that this user owns and that no process maps. Returns the removed ones."""
    left = frozenset(names) & present()
    if not left:
        return []
    left -= mapped(seen.pid for seen in process.everything() if seen.live)
    removed = []
    for name in sorted(left):
        with contextlib.suppress(OSError):
            if os.stat(FOLDER + name).st_uid == os.getuid():  # noqa: PTH116
                os.unlink(FOLDER + name)  # noqa: PTH108
                removed.append(name)
    return removed
