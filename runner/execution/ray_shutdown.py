"""Ending a local Ray whose processes do not see SIGTERM.

`timeout`, a service manager and a job scheduler send SIGTERM to a whole process group. A Ray that ends by it takes the actor away
before the driver could end the launch in order, and the driver's next call waits a minute for the dead control store and aborts.
So Ray's processes are started with SIGTERM and SIGHUP blocked (Ray itself does that for SIGINT); when Ray then ends them by
SIGTERM it would wait a second for each. Here such a process is ended at once: the signal is seen pending.
"""

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

from runner.engines import process

WITHHELD = frozenset({signal.SIGTERM, signal.SIGHUP})
POLL_S = 0.02


def shield() -> None:
    """In the thread that starts Ray, before it does: processes inherit the mask of the thread that starts them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WITHHELD)


def shut_down(ray: Any) -> None:
    """`ray.shutdown()`, to be called in the thread that started Ray. Whatever of ours Ray asks to end is ended, with its children."""
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()  # a reference of Ray's that is collected in another thread while its worker goes makes Ray end this process
    try:
        _shut_down_watched(ray)
    finally:
        if collecting:
            gc.enable()


def _shut_down_watched(ray: Any) -> None:
    ender = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    ender.start()
    while ender.is_alive():
        # A SIGTERM to the whole group may have been pending for long: not before Ray itself has let go of them.
        for child in process.descendants([os.getpid()]) if not ray.is_initialized() else ():
            if child.ppid == os.getpid() and asked_to_end(child.pid):
                process.send_all(process.descendants([child.pid], include_roots=True), signal.SIGKILL)
        ender.join(POLL_S)


def asked_to_end(pid: int) -> bool:
    """Does a SIGTERM wait for the process behind its mask?"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    pending = next((line.split()[1] for line in lines if line.startswith("ShdPnd:")), "0")
    return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)
