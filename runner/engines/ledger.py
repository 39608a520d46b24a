"""The ledger on disk: which processes a study started. One file of JSON lines an owner, written before a process can run.

It covers what the guard cannot: owner, guard and keeper killed at once, and reboots. A line is not fsynced: the page cache
survives every death but the machine's own, and after that nothing is left to end.
"""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.engines import process
from runner.records.paths import safe_name

FOLDER = "ledger"


@dataclass(frozen=True)
class Owner:
    """Who wrote a ledger. `start` in clock ticks since boot, `since` in Unix seconds."""

    pid: int
    start: int
    boot: str
    namespace: str
    study: str
    user: int
    since: float

    @classmethod
    def this_process(cls, study: str) -> "Owner":
        start = process.start_of(os.getpid()) or 0
        return cls(os.getpid(), start, process.boot_id(), process.pid_namespace(), study, os.getuid(), time.time())

    @property
    def here(self) -> bool:
        """Written in this boot and this pid namespace, so that its pids mean something."""
        return self.boot == process.boot_id() and self.namespace == process.pid_namespace()

    @property
    def alive(self) -> bool:
        return self.here and process.is_live(self.pid, self.start)


@dataclass(frozen=True)
class Entry:
    """One process. `role`: guard, keeper, server or child; `token` marks everything that a server starts.
    `container`: runtime and id file of a container, ended by its id."""

    pid: int
    start: int
    role: str
    launch: str = ""
    token: str = ""
    container: dict[str, str] | None = None


@dataclass(frozen=True)
class Book:
    """What one ledger file holds: its owner and the entries that were not struck out. `owner.user` is the file's user, whatever the
    file says: anybody may put a ledger into the shared folder, and it speaks for that user's processes only."""

    path: Path
    owner: Owner
    entries: tuple[Entry, ...] = ()


@dataclass
class Ledger:
    """Writes one owner's file in `folder`/ledger. The file is made with the first entry and removed by `close`.

    `folder` is node-wide (see `locks.default_lock_folder`); each owner writes a file of its own, so nothing is shared. (The path of
    a .jsonl file stands for its folder.)"""

    folder: Path
    study: str
    path: Path = field(init=False)
    owner: Owner = field(init=False)

    def __post_init__(self) -> None:
        self.owner = Owner.this_process(self.study)
        name = f"{safe_name(self.study)}-{self.owner.pid}-{self.owner.start}-{secrets.token_hex(4)}.jsonl"
        folder = Path(self.folder)
        self.path = (folder.parent if folder.suffix == ".jsonl" else folder) / FOLDER / name

    def add(self, entry: Entry) -> None:
        """Writes an entry. Raises OSError (full disk, no right): then the process must not run."""
        if not self.path.exists():
            make_shared_folder(self.path.parent)
            self._append({"owner": asdict(self.owner)})
        self._append({"entry": asdict(entry)})

    def add_children(self, launch: str, token: str, children: Iterable[process.Seen]) -> None:
        """Writes the tree that a server has built, so that its members are known by pid and start time too."""
        for seen in children:
            self.add(Entry(seen.pid, seen.start, "child", launch, token))

    def gone(self, token: str) -> None:
        """Strikes out everything with this token: no process of it lives any more."""
        with contextlib.suppress(OSError):
            self._append({"gone": token})

    def close(self) -> None:
        """Removes the file: nothing that it names lives any more."""
        self.path.unlink(missing_ok=True)

    def _append(self, line: dict[str, Any]) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            data = (json.dumps(line) + "\n").encode()
            if os.write(descriptor, data) != len(data):
                raise OSError(28, "no space left for the ledger", str(self.path))
        finally:
            os.close(descriptor)


def make_shared_folder(path: Path) -> None:
    """A folder that every user may add to and nobody may remove another's file from (sticky)."""
    for folder in [parent for parent in reversed(path.parents) if not parent.exists()] + [path]:
        if folder.exists():
            continue
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            with contextlib.suppress(PermissionError):
                folder.chmod(0o1777)


def read(path: Path) -> Book | None:
    """One ledger file; a torn last line is left out. None when not even the owner is readable."""
    owner: Owner | None = None
    entries: list[Entry] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        user = path.lstat().st_uid
    except OSError:
        return None
    for line in lines:
        try:
            words = json.loads(line)
            if "owner" in words:
                owner = Owner(**{**words["owner"], "user": user})
            elif "entry" in words:
                entries.append(Entry(**words["entry"]))
            elif "gone" in words:
                entries = [entry for entry in entries if entry.token != words["gone"] or not entry.token]
        except (ValueError, TypeError):
            continue
    return None if owner is None else Book(path, owner, tuple(entries))


def books(folder: Path) -> list[Book]:
    """Every readable ledger under `folder` (its own sub-folder is searched)."""
    found = (read(path) for path in sorted((folder / FOLDER).glob("*.jsonl")))
    return [book for book in found if book is not None]
