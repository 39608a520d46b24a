"""One study a node: a lock on a file that every user of the machine sees (two local Rays do not see each other).

The lock belongs to the open file, not to a process (flock(2)): guard, keepers and servers hold the descriptor too, so the node
stays locked as long as an orphan lives, and is free the moment the last of them is gone, whichever way it died.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import tempfile
import time
from pathlib import Path

from runner.engines import process
from runner.engines.ledger import make_shared_folder
from runner.errors import NodeBusy, UserError

NAME = "engine-flag-runner"
FILE = "node.lock"


def default_lock_folder() -> Path:
    """The node-wide folder of lock and ledger: /var/lock where every user may write to it (sticky), else the system's /tmp.

    TMPDIR is not asked: it differs between users, and then there would be two locks."""
    for parent in (Path("/var/lock"), Path("/tmp")):  # noqa: S108
        try:
            mode = parent.stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and os.access(parent, os.W_OK):
            return parent / NAME
    return Path(tempfile.gettempdir()) / NAME


class NodeLock:
    """The node's lock. `acquire` opens and locks; `release` closes, which unlocks once nobody else holds the descriptor."""

    def __init__(self, folder: Path | None = None, study: str = "") -> None:
        self.folder = default_lock_folder() if folder is None else Path(folder)
        self.study = study
        self.path = self.folder / FILE
        self.fd: int | None = None

    def acquire(self, wait_s: float = 0.0, study: str | None = None) -> int:
        """Locks the node and returns the descriptor (hand it to `GuardedOwner`). Raises NodeBusy naming the holder after
        `wait_s` seconds, UserError when the lock file cannot be used."""
        if self.fd is not None:
            return self.fd
        self.study = self.study if study is None else study
        descriptor = self._open()
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as failed:
                if failed.errno not in (errno.EAGAIN, errno.EACCES):
                    os.close(descriptor)
                    raise UserError(f"the node lock {self.path} cannot be locked: {failed.strerror}") from None
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise NodeBusy(self._busy()) from None
                time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))
        self.fd = descriptor
        words = {
            "pid": os.getpid(),
            "start": process.start_of(os.getpid()),
            "boot": process.boot_id(),
            "study": self.study,
            "since": time.time(),
            "user": os.getuid(),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(words) + "\n").encode(), 0)
        return descriptor

    def _open(self) -> int:
        """Opens the file without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on another user's file."""
        make_shared_folder(self.folder)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        for _ in range(5):
            try:
                return os.open(self.path, flags)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    descriptor = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                    os.fchmod(descriptor, 0o666)  # the umask must not shut other users out
                    return descriptor
            except OSError as failed:
                raise UserError(
                    f"the node lock {self.path} cannot be opened: {failed.strerror}; name a folder that every user of this "
                    f"machine may write to with execution.lock_dir=PATH"
                ) from None
        raise UserError(f"the node lock {self.path} comes and goes; name another folder with execution.lock_dir=PATH")

    def holder(self) -> dict[str, object]:
        """What the last holder wrote: pid, start, boot, study, since (Unix seconds), user. Empty when nothing is readable."""
        try:
            words = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return words if isinstance(words, dict) else {}

    def _busy(self) -> str:
        words = self.holder()
        if not words:
            return f"the node is busy: another study holds {self.path}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(words.get("since") or 0))))
        pid, start = int(str(words.get("pid") or 0)), words.get("start")
        what = f"study {words.get('study') or 'unnamed'} (pid {pid}, user {words.get('user')}, since {since})"
        dead = words.get("boot") == process.boot_id() and not process.is_live(pid, start if isinstance(start, int) else None)
        if dead:
            return f"the node is busy: {what} is dead, but processes that it started still hold the node; end them with action=clean"
        return f"the node is busy: {what} runs on it; wait for it, or end it"

    def release(self) -> None:
        """Closes our descriptor. Whoever else holds it (an orphan's guard) keeps the node locked."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __enter__(self) -> "NodeLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
