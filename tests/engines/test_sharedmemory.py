"""What a server leaves in /dev/shm is removed, what others use is not."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.engines import sharedmemory

PROGRAM = """\
import mmap, os, sys
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(name: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that maps the segment until it is killed, and removes nothing."""
    path = Path(sharedmemory.FOLDER) / name
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "mapped\n"
        yield child
    finally:
        child.kill()
        child.communicate()
        path.unlink(missing_ok=True)


def test_a_segment_goes_when_nobody_maps_it_any_more() -> None:
    name = f"runner test {uuid.uuid4().hex}"
    with holder(name) as child:
        assert sharedmemory.mapped([child.pid]) == {name} and name in sharedmemory.present()
        assert sharedmemory.remove_unused([name]) == [], "somebody uses it"
        child.kill()
        child.wait()
        assert sharedmemory.mapped([child.pid]) == frozenset()
        assert sharedmemory.remove_unused([name, "never-there"]) == [name]
        assert name not in sharedmemory.present()


def test_what_was_not_named_stays() -> None:
    mine, theirs = (f"runner-test-{uuid.uuid4().hex}" for _ in range(2))
    with holder(mine) as one, holder(theirs) as other:
        for child in (one, other):
            child.kill()
            child.wait()
        assert sharedmemory.remove_unused([mine]) == [mine]
        assert os.path.exists(sharedmemory.FOLDER + theirs)  # noqa: PTH110
