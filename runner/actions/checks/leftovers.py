"""Does somebody hold the node, and did a dead study leave anything?"""

import os
from pathlib import Path

from runner.actions.checks.finding import Finding, fail, ok, warn


def is_locked(path: Path, locks: str | None = None) -> bool | None:
    """Is this file flocked? Read from /proc/locks, so that nobody who tries to take it is disturbed. None where nothing tells."""
    try:
        inode = path.stat()
        text = Path("/proc/locks").read_text(encoding="utf-8") if locks is None else locks
    except FileNotFoundError:
        return False
    except OSError:
        return None
    wanted = f"{os.major(inode.st_dev):02x}:{os.minor(inode.st_dev):02x}:{inode.st_ino}"
    return any(words[1] == "FLOCK" and wanted in words for line in text.splitlines() if len(words := line.split()) > 5)


def check_lock(locked: bool | None, holder: str, folder: str) -> list[Finding]:
    """`holder`: what the lock file says of its last holder."""
    if locked is None:
        return [warn("node lock", f"{folder} cannot be looked at", "name a folder with execution.lock_dir=PATH")]
    if locked:
        return [fail("node lock", f"held: {holder}", "wait for that study; if it is dead, action=clean ends what it left")]
    return [ok("node lock", f"free ({folder})")]


def check_leftovers(alive: list[str], left: dict[str, list[str]]) -> list[Finding]:
    """`alive`: studies that run; `left`: dead study -> processes that it left."""
    found = []
    for study, processes in left.items():
        found.append(fail("leftovers", f"study {study} is dead and left {', '.join(processes[:6])}", "python -m runner action=clean"))
    if not left:
        found.append(ok("leftovers", "none" + (f"; study {', '.join(alive)} runs" if alive else "")))
    return found
