"""Signals: Ctrl-C while the command is still importing, SIGTERM to the whole process group in the middle of a launch."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.actions.signals import SAME_REQUEST_S
from runner.engines import process
from runner.engines.ledger import Entry, books
from runner.engines.locks import NodeLock

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = """
import os, signal, sys
class Now:
    def find_spec(self, name, path=None, target=None):
        if name == "hydra":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Now())
from runner.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"


def code_after(*signals: tuple[signal.Signals, float]) -> int:
    """Exit code of a process that is sent these signals, each so many seconds after the one before; 0: it went on."""
    code = f"""
import os, time
from runner.actions.signals import StopRequest
stop = StopRequest()
stop.install()
for number, gap in {[(int(number), gap) for number, gap in signals]}:
    time.sleep(gap)
    os.kill(os.getpid(), number)
assert stop.asked()
"""
    return subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60, check=False).returncode


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([(signal.SIGINT, 0.0)], 0),
        ([(signal.SIGINT, 0.0), (signal.SIGINT, 0.05)], 0),  # a wrapper passes on what the terminal has sent to everybody
        ([(signal.SIGINT, 0.0), (signal.SIGINT, SAME_REQUEST_S + 0.1)], 130),
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, SAME_REQUEST_S + 0.1)], 0),
        ([(signal.SIGINT, 0.0), (signal.SIGHUP, SAME_REQUEST_S + 0.1)], 0),
        ([(signal.SIGTERM, 0.0), (signal.SIGINT, SAME_REQUEST_S + 0.1)], 130),
    ],
)
def test_only_a_person_who_asks_again_ends_the_process_at_once(signals: list[tuple[signal.Signals, float]], code: int) -> None:
    assert code_after(*signals) == code


@pytest.mark.parametrize("executor", ["ray", "inline"])
def test_sigterm_to_the_whole_group_ends_a_launch_in_order(tmp_path: Path, executor: str) -> None:
    """As `timeout` sends it: to its child and then to the child's group, so twice to the driver, which must not take that for an
    impatient person. Cron's night and a service manager send it to the group, and Ray's processes must outlive their launch."""
    out = tmp_path / "out.txt"
    command = [sys.executable, "-m", "runner", "+experiment=smoke", "yes=true", f"execution.executor={executor}", "tracking.enabled=false"]
    command += ["study.name=one", f"tracking.root={tmp_path / 'runs'}", f"execution.lock_dir={tmp_path / 'lock'}"]
    with out.open("w") as text:
        driver = subprocess.Popen(command, cwd=REPOSITORY, stdout=text, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while "TPOT" not in out.read_text() and time.monotonic() < deadline and driver.poll() is None:
            time.sleep(0.1)
        assert driver.poll() is None and "TPOT" in out.read_text()
        started = [seen for entry in ledger_entries(tmp_path / "lock") if (seen := process.look(entry.pid)) and seen.live]
        assert started
        os.kill(driver.pid, signal.SIGTERM)
        time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGTERM)
        assert driver.wait(timeout=30) == 130
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    assert "launches are kept; the same command with study.name=one goes on" in out.read_text()
    assert [seen for seen in started if process.is_live(seen.pid, seen.start)] == []
    assert list((tmp_path / "lock").rglob("*.jsonl")) == []
    journal = (tmp_path / "runs" / "studies" / "one" / "journal.jsonl").read_text()
    assert '"kind":"launch_finished"' in journal or '"kind":"launch_started"' in journal


def ledger_entries(folder: Path) -> list[Entry]:
    return [entry for book in books(folder) for entry in book.entries]


def test_a_busy_node_leaves_no_study_that_would_pass_for_the_latest(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", "+experiment=smoke", "yes=true", "execution.executor=inline", "tracking.enabled=false"]
    command += [f"tracking.root={tmp_path / 'runs'}", f"execution.lock_dir={tmp_path / 'lock'}"]
    with NodeLock(tmp_path / "lock", study="theirs"):
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 75, done.stderr
    assert "study theirs" in done.stderr
    assert not list((tmp_path / "runs" / "studies").glob("*"))


def test_a_reader_that_has_seen_enough_is_nobodys_failure(tmp_path: Path) -> None:
    """`... | head`: the pipe is closed before the text is out."""
    command = [sys.executable, "-u", "-m", "runner", "+experiment=overlap_grid", "action=plan", f"tracking.root={tmp_path / 'runs'}"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, cwd=REPOSITORY, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
