"""`action=clean`: ends exactly what a dead study left behind. Never by name; pid, start time and boot must match the ledger.

A process that the ledger does not name is ended only as a live descendant of one that it names, or when it carries that
server's own random token in its environment.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from runner.engines import process
from runner.engines.ledger import FOLDER, Book, books
from runner.spec.base import Strict

TERMINATE_S = 3.0
KILL_S = 10.0


class Ended(Strict):
    """One process that was ended. `how`: terminated (by SIGTERM), killed, or survived (it could not be ended)."""

    pid: int
    study: str
    launch: str = ""
    what: str = ""
    how: str = "terminated"


class CleanReport(Strict):
    """What `clean` found: processes and containers ended, studies still alive (untouched), ledgers removed."""

    folder: str
    ended: tuple[Ended, ...] = ()
    containers: tuple[str, ...] = ()
    alive: tuple[str, ...] = Field(default=(), description="studies that run; nothing of theirs was touched")
    removed: int = Field(default=0, description="ledgers of dead studies that name nothing alive any more")
    kept: tuple[str, ...] = Field(default=(), description="ledgers of dead studies that could not be finished, with the reason")

    @property
    def clean(self) -> bool:
        """True when nothing of a dead study is left."""
        return not self.kept and all(ended.how != "survived" for ended in self.ended)

    def __str__(self) -> str:
        """For the terminal: a line for each process, container and study."""
        lines = [f"{each.how} pid {each.pid} of study {each.study}: {each.what}" for each in self.ended]
        lines += [f"ended container {name}" for name in self.containers]
        lines += [f"study {name} runs; left alone" for name in self.alive]
        lines += [f"not finished: {reason}" for reason in self.kept]
        return "\n".join(lines or ["nothing was left behind"])


def left_by(book: Book) -> list[process.Seen]:
    """Live processes that a dead owner left: the ledger's own (same pid, same start time), their descendants, and those that
    carry a token of the ledger. Nothing from another boot or pid namespace, and nothing of another user than the ledger's."""
    if not book.owner.here:
        return []
    named = [
        seen
        for entry in book.entries
        if entry.pid > 1 and (seen := process.look(entry.pid)) is not None and seen.start == entry.start and seen.live
    ]
    found = {seen.pid: seen for seen in [*named, *process.descendants([seen.pid for seen in named])]}
    tokens = {entry.token for entry in book.entries if entry.token}
    for seen in process.everything() if tokens else ():
        if seen.live and seen.pid not in found and process.environment(seen.pid).get(process.TOKEN_VARIABLE) in tokens:
            found[seen.pid] = seen
    found.pop(os.getpid(), None)
    return [seen for seen in found.values() if process.user_of(seen.pid) == book.owner.user]


def clean(folder: Path) -> CleanReport:
    """Ends what dead studies left, according to the ledgers in `folder`. Live studies are left alone. May take some seconds."""
    ended: list[Ended] = []
    containers: list[str] = []
    alive: list[str] = []
    kept: list[str] = []
    removed = 0
    for book in books(Path(folder)):
        if book.owner.alive:
            alive.append(book.owner.study)
            continue
        if book.owner.boot == process.boot_id() and not book.owner.here:
            kept.append(f"{book.path.name}: written in another pid namespace (a container), clean it there")
            continue
        ended += _end(book)
        ids, failures = _end_containers(book)
        containers += ids
        left = left_by(book)
        if left or failures:
            kept += [f"study {book.owner.study}: pid {seen.pid} lives on" for seen in left] + failures
            continue
        with contextlib.suppress(OSError):
            book.path.unlink()
            removed += 1
    return CleanReport(
        folder=str(Path(folder) / FOLDER),
        ended=tuple(ended),
        containers=tuple(containers),
        alive=tuple(dict.fromkeys(alive)),
        removed=removed,
        kept=tuple(kept),
    )


def _end(book: Book) -> list[Ended]:
    """SIGTERM, a moment, SIGKILL, until nothing is left or `KILL_S` have passed. A guard or keeper that lives ends its own."""
    launches = {entry.pid: entry.launch for entry in book.entries}
    first = left_by(book)
    what = {seen.pid: process.command_line(seen.pid)[:160] or seen.name for seen in first}
    process.send_all(first, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_S
    while (left := left_by(book)) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = {seen.pid for seen in left}
    what |= {seen.pid: process.command_line(seen.pid)[:160] or seen.name for seen in left if seen.pid not in what}
    deadline = time.monotonic() + KILL_S
    while left and time.monotonic() < deadline:
        process.send_all(left, signal.SIGKILL)
        process.wait_until_gone(left, 0.2)
        left = left_by(book)
    survivors = {seen.pid for seen in left}
    return [
        Ended(
            pid=pid,
            study=book.owner.study,
            launch=launches.get(pid, ""),
            what=text,
            how="survived" if pid in survivors else "killed" if pid in killed else "terminated",
        )
        for pid, text in what.items()
    ]


def _end_containers(book: Book) -> tuple[list[str], list[str]]:
    """Ends containers by their id. Only this user's own ledgers are believed: their words are run as a command."""
    ids: list[str] = []
    failures: list[str] = []
    for entry in book.entries:
        if entry.container is None:
            continue
        if book.owner.user != os.getuid():
            failures.append(f"study {book.owner.study}: its container belongs to user {book.owner.user}, who must clean it")
            continue
        runtime, cidfile = entry.container["runtime"], Path(entry.container["cidfile"])
        try:
            identity = cidfile.read_text(encoding="utf-8").strip()
        except OSError:
            continue  # the runtime never got as far as making one
        known = _runtime(runtime, "inspect", "--format", "{{.State.Running}}", identity)
        if known.returncode != 0:
            continue  # --rm has removed it
        done = _runtime(runtime, "rm", "--force", identity)
        if done.returncode == 0:
            ids.append(identity[:12])
        else:
            failures.append(f"container {identity[:12]}: {done.stderr.strip()[-200:]}")
    return ids, failures


def _runtime(*argv: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as failed:
        return subprocess.CompletedProcess(list(argv), 127, "", str(failed))


def report_json(report: CleanReport) -> dict[str, Any]:
    """The object that `action=clean json=true` prints."""
    return json.loads(report.model_dump_json())  # type: ignore[no-any-return]
