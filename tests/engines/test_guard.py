"""Nothing that was started outlives its owner, its guard or its keeper, whatever is killed and however stubborn it is."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engines import process
from runner.engines.clean import clean
from runner.engines.guard import GuardBroken, GuardedOwner
from runner.engines.ledger import Ledger, books
from runner.engines.locks import NodeLock
from runner.errors import NodeBusy
from tests.engines.owned_programs import SLEEP, stubborn, until

REPOSITORY = Path(__file__).parents[2]

# An owner in a process of its own: starts a stubborn server under the node's lock, says so, and waits to be killed.
OWNER = """
import json, os, sys, time
from pathlib import Path
from runner.engines.guard import GuardedOwner
from runner.engines.ledger import Ledger
from runner.engines.locks import NodeLock
folder, program, marker = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
lock = NodeLock(folder, "victim")
owner = GuardedOwner(Ledger(folder, "victim"), lock.acquire())
owned = owner.spawn([sys.executable, "-c", program, marker], dict(os.environ), folder / "launch-1" / "server.log")
while not all(Path(marker + end).exists() and Path(marker + end).read_text() for end in (".parent", ".child", ".deep")):
    time.sleep(0.01)
print(json.dumps({"guard": owner.guard_pid, "keeper": owned.keeper.pid, "server": owned.pid, "tree": owned.tree()}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[GuardedOwner]:
    made = GuardedOwner(Ledger(tmp_path, "study"), grace=0.3)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Pids of an owner elsewhere, its guard, its keeper and its server; everything is ended afterwards."""
    from tests.engines.owned_programs import STUBBORN

    marker = str(tmp_path / "pids")
    started = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), STUBBORN, marker],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
    )
    pids: dict[str, int] = {}
    try:
        assert started.stdout is not None
        said = json.loads(started.stdout.readline())
        deep = int(Path(marker + ".deep").read_text())
        child = int(Path(marker + ".child").read_text())
        assert {said["server"], deep, child} <= set(said["tree"]), "double-forked children belong to the tree"
        pids = {
            "owner": started.pid,
            "guard": said["guard"],
            "keeper": said["keeper"],
            "server": said["server"],
            "deep": deep,
            "child": child,
        }
        yield pids
    finally:
        started.kill()
        started.wait()
        clean(tmp_path)
        for pid in pids.values():
            if process.is_live(pid) and str(tmp_path) in process.command_line(pid):
                os.kill(pid, signal.SIGKILL)


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def gone(victim: dict[str, int], *names: str, timeout: float = 10.0) -> bool:
    return until(lambda: not any(process.is_live(victim[name]) for name in names), timeout)


@pytest.mark.parametrize("killed", [("owner",), ("guard",), ("keeper",), ("guard", "keeper")], ids="+".join)
def test_killing_who_watches_ends_the_whole_tree(victim: dict[str, int], killed: tuple[str, ...]) -> None:
    kill(*(victim[name] for name in killed))
    assert gone(victim, "server", "child", "deep", timeout=10)
    if "owner" in killed:
        assert gone(victim, "guard", "keeper")


def test_owner_guard_and_keeper_killed_at_once_leaves_it_to_clean(victim: dict[str, int], tmp_path: Path) -> None:
    kill(victim["owner"], victim["guard"], victim["keeper"])
    assert until(lambda: not any(process.is_live(victim[name]) for name in ("owner", "guard", "keeper")))
    assert process.is_live(victim["server"]), "nobody was left to end it"
    with pytest.raises(NodeBusy, match=r"study victim .* is dead, but processes .*action=clean"):
        NodeLock(tmp_path, "next").acquire()
    report = clean(tmp_path)
    assert {victim["server"], victim["child"], victim["deep"]} <= {ended.pid for ended in report.ended}
    assert report.clean and not books(tmp_path)
    assert gone(victim, "server", "child", "deep", timeout=1)
    lock = NodeLock(tmp_path, "next")
    assert until(lambda: lock.acquire() > 0, 2)
    lock.release()


def test_an_orphan_keeps_the_node_locked_until_it_is_gone(victim: dict[str, int], tmp_path: Path) -> None:
    kill(victim["owner"])
    lock = NodeLock(tmp_path, "next")
    lock.acquire(wait_s=15)
    assert not any(process.is_live(victim[name]) for name in ("server", "child", "deep")), "the lock came before the end"
    lock.release()


def test_exit_codes_are_the_real_ones(owner: GuardedOwner, tmp_path: Path) -> None:
    log = tmp_path / "l" / "server.log"
    plain = owner.spawn([sys.executable, "-c", "print('said'); raise SystemExit(7)"], dict(os.environ), log)
    assert until(lambda: plain.poll() is not None)
    assert plain.poll() == 7 and log.read_text() == "said\n"
    shot = owner.spawn(SLEEP, dict(os.environ), log)
    assert shot.poll() is None
    os.kill(shot.pid, signal.SIGSEGV)
    assert until(lambda: shot.poll() is not None) and shot.poll() == -signal.SIGSEGV


def test_terminate_reaches_only_the_parent_and_kill_everybody(owner: GuardedOwner, tmp_path: Path) -> None:
    marker = str(tmp_path / "pids")
    owned = owner.spawn(stubborn(marker), dict(os.environ), tmp_path / "l" / "server.log")
    assert until(lambda: len(owned.tree()) == 3 and all(Path(marker + end).exists() for end in (".parent", ".child", ".deep")))
    owned.terminate()
    assert not owned.wait_gone(0.2) and owned.poll() is None, "it ignores SIGTERM"
    owned.kill()
    assert owned.wait_gone(5) and owned.poll() == -signal.SIGKILL
    assert owned.tree() == []


def test_close_ends_everything_and_removes_the_ledger(tmp_path: Path) -> None:
    owner = GuardedOwner(Ledger(tmp_path, "study"), grace=0.2)
    marker = str(tmp_path / "pids")
    owned = [owner.spawn(argv, dict(os.environ), tmp_path / f"l{i}" / "server.log") for i, argv in enumerate((SLEEP, stubborn(marker)))]
    assert until(lambda: all(Path(marker + end).exists() for end in (".parent", ".child", ".deep")))
    members = [seen for each in owned for seen in each.members()]
    guard = owner.guard_pid
    owner.close()
    owner.close()
    assert len(members) == 4 and not any(process.is_live(seen.pid, seen.start) for seen in members)
    assert guard is not None and until(lambda: not process.is_live(guard), 2)
    assert not books(tmp_path)
    with pytest.raises(GuardBroken):
        owner.spawn(SLEEP, {}, tmp_path / "l" / "server.log")


def test_it_is_in_the_ledger_before_it_runs(tmp_path: Path) -> None:
    """A ledger that cannot be written stops the process before its first instruction."""

    class Full(Ledger):
        def add(self, entry: object) -> None:  # type: ignore[override]
            if getattr(entry, "role", "") == "server":
                raise OSError(28, "no space left on device")
            super().add(entry)  # type: ignore[arg-type]

    owner = GuardedOwner(Full(tmp_path, "study"))
    try:
        with pytest.raises(OSError, match="no space left"):
            owner.spawn(["touch", str(tmp_path / "ran")], dict(os.environ), tmp_path / "l" / "server.log")
        time.sleep(0.2)
        assert not (tmp_path / "ran").exists()
        assert not process.descendants([owner.guard_pid or 0])
    finally:
        owner.close()


def test_a_program_that_is_not_there_says_so(owner: GuardedOwner, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        owner.spawn(["/no/such/program"], {}, tmp_path / "l" / "server.log")
    (tmp_path / "text").write_text("no program")
    with pytest.raises(PermissionError):
        owner.spawn([str(tmp_path / "text")], {}, tmp_path / "l" / "server.log")


def test_a_dead_guard_is_replaced_at_the_next_spawn(owner: GuardedOwner, tmp_path: Path) -> None:
    first = owner.guard_pid
    assert first is not None
    kill(first)
    assert until(lambda: not process.is_live(first))
    owned = owner.spawn(SLEEP, dict(os.environ), tmp_path / "l" / "server.log")
    assert owner.guard_pid != first and owned.poll() is None


def test_the_last_command_runs_whoever_ends_the_process(owner: GuardedOwner, tmp_path: Path) -> None:
    for number, end in enumerate(("kill", "terminate", "itself")):
        seal = tmp_path / f"sealed-{number}"
        argv = ["true"] if end == "itself" else SLEEP
        owned = owner.spawn(argv, dict(os.environ), tmp_path / "l" / "server.log", at_end=["touch", str(seal)])
        if end != "itself":
            getattr(owned, end)()
        assert owned.wait_gone(5) and seal.exists(), end


def test_children_do_not_get_the_guards_descriptors_or_signals(owner: GuardedOwner, tmp_path: Path) -> None:
    log = tmp_path / "l" / "server.log"
    program = (
        "import os, signal\n"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))\n"
        "print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0], os.getsid(0) == os.getpid())\n"
    )
    owned = owner.spawn([sys.executable, "-c", program], dict(os.environ), log)
    assert until(lambda: owned.poll() is not None)
    first, second = log.read_text().splitlines()
    assert first == "[0, 1, 2] 4"  # the fourth is the listing's own
    ignored = int(second.split()[0], 16)
    assert not ignored & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGHUP - 1) | 1 << (signal.SIGINT - 1))
    assert second.endswith("True")


def test_a_keeper_that_dies_between_two_looks_hides_nothing(owner: GuardedOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is alive when asked, and has given its children away when they are looked for."""
    owned = owner.spawn(SLEEP, dict(os.environ), tmp_path / "l" / "server.log")
    assert owned.keeper is not None
    keeper, real_live, real_descendants = owned.keeper.pid, process.is_live, process.descendants
    answers = iter([True])

    def is_live(pid: int, start: int | None = None) -> bool:
        return next(answers, False) if pid == keeper else real_live(pid, start)

    def descendants(roots: list[int], include_roots: bool = False) -> list[process.Seen]:
        return [] if list(roots) == [keeper] else real_descendants(roots, include_roots)

    with monkeypatch.context() as patched:
        patched.setattr(process, "is_live", is_live)
        patched.setattr(process, "descendants", descendants)
        assert owned.tree() == [owned.pid]
