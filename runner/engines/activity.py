"""Signs of life of a server that says nothing: compilers among its children, a growing compile cache, disk reads."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.engines import process
from runner.engines.stages import Activity

COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cudafe++", "ninja", "cc1plus", "cc1", "g++", "gcc", "c++", "cc", "clang", "clang++"}
    | {"ld", "as", "collect2", "cmake", "ptxas-blackwell", "triton"}
)
_COMPILE_WORDS = ("compile_worker", "torch._inductor", "triton.compiler", "triton/backends")
READ_STEP = 4 << 20
CACHE_EVERY_S = 1.0


def is_compiler(seen: process.Seen) -> bool:
    """True for a compiler, by name or by what it was started with. proc(5) cuts names at 15 letters."""
    if seen.name in COMPILERS or seen.name in {name[:15] for name in COMPILERS}:
        return True
    return any(word in process.command_line(seen.pid) for word in _COMPILE_WORDS)


def bytes_read(pids: Sequence[int]) -> int:
    """Bytes that these processes have read from files so far, as far as /proc/<pid>/io may be read."""
    total = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                if line.startswith("rchar:"):
                    total += int(line.split()[1])
        except (OSError, ValueError):
            continue
    return total


def cache_stamp(roots: Sequence[Path], limit: int = 20000) -> tuple[int, float]:
    """Number of files and newest change under the compile caches; differs when a compiler wrote something."""
    count, newest = 0, 0.0
    for root in roots:
        for folder, _, names in os.walk(root):
            try:
                newest = max(newest, os.stat(folder).st_mtime)  # noqa: PTH116
            except OSError:
                continue
            count += len(names)
            if count > limit:
                return count, newest
    return count, newest


class Watch:
    """Looks at one server's tree and its caches. `look` is called while the log is silent."""

    def __init__(self, members: Callable[[], list[process.Seen]], caches: Sequence[Path] = ()) -> None:
        self.members, self.caches = members, tuple(caches)
        self._read = 0
        self._stamp = cache_stamp(self.caches)
        self._stamped_at = time.monotonic()

    def look(self, at_once: bool = False) -> Activity:
        """What the server has done since the last look. The caches are walked once a second at most, unless `at_once`."""
        members = self.members()
        compiling = any(is_compiler(seen) for seen in members)
        now = time.monotonic()
        if not compiling and self.caches and (at_once or now - self._stamped_at >= CACHE_EVERY_S):
            stamp = cache_stamp(self.caches)
            compiling = stamp != self._stamp
            self._stamp, self._stamped_at = stamp, now
        if compiling:
            return "compiling"
        read = bytes_read([seen.pid for seen in members])
        grew, self._read = read - self._read, read
        return "reading" if grew > READ_STEP else "none"
