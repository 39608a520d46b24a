"""Little programs that tests start under the guard, and helpers to wait. Not a test file."""

import sys
import time
from collections.abc import Callable

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

# Ignores SIGTERM, and has a child in a session of its own that was forked twice and ignores SIGTERM too.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".deep", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    open(sys.argv[1] + ".child", "w").write(str(os.getpid()))
    time.sleep(600)
os.wait()
open(sys.argv[1] + ".parent", "w").write(str(os.getpid()))
time.sleep(600)
"""


def stubborn(marker: str) -> list[str]:
    return [sys.executable, "-c", STUBBORN, marker]


def until(condition: Callable[[], object], timeout: float = 10.0) -> bool:
    """Waits until `condition` is true; False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
