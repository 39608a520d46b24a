"""One study a node: the second is refused by the first one's name, whoever they are."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.engines.locks import NodeLock, default_lock_folder
from runner.errors import NodeBusy, UserError


def test_the_second_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with NodeLock(tmp_path / "node", "overlap") as first:
        assert first.fd is not None and not os.get_inheritable(first.fd)
        with pytest.raises(NodeBusy, match=rf"study overlap \(pid {os.getpid()}, user {os.getuid()}, since 20\d\d-"):
            NodeLock(tmp_path / "node", "other").acquire()
    NodeLock(tmp_path / "node", "other").acquire()


def test_it_waits_as_long_as_it_may(tmp_path: Path) -> None:
    first = NodeLock(tmp_path, "first")
    first.acquire()
    began = time.monotonic()
    with pytest.raises(NodeBusy):
        NodeLock(tmp_path, "second").acquire(wait_s=0.3)
    assert time.monotonic() - began >= 0.3
    first.release()
    assert NodeLock(tmp_path, "second").acquire(wait_s=0.3) >= 0


def test_a_killed_holder_frees_the_node_but_its_child_with_the_descriptor_does_not(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\nfrom pathlib import Path\nfrom runner.engines.locks import NodeLock\n"
        "fd = NodeLock(Path(sys.argv[1]), 'dead').acquire()\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[fd] if sys.argv[2] == 'pass' else [])\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    for how in ("pass", "keep"):
        holder = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), how], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            holder.kill()
            holder.wait()
            lock = NodeLock(tmp_path, "next")
            if how == "pass":
                with pytest.raises(NodeBusy, match="is dead, but processes that it started still hold"):
                    lock.acquire()
            else:
                lock.acquire()
        finally:
            os.kill(child, 9)
        lock.acquire(wait_s=2)
        lock.release()


def test_several_users_can_use_it(tmp_path: Path) -> None:
    """The folder is sticky and open, the file is open, and the umask does not shut others out."""
    old = os.umask(0o077)
    try:
        with NodeLock(tmp_path / "made" / "node", "study") as lock:
            assert stat.S_IMODE(lock.folder.stat().st_mode) == 0o1777
            assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    finally:
        os.umask(old)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "node.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="cannot be opened"):
        NodeLock(tmp_path, "study").acquire()
    assert (tmp_path / "victim").read_text() == "precious"


def test_the_default_folder_does_not_depend_on_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = default_lock_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert default_lock_folder() == before and before.is_absolute()
