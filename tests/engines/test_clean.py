"""`clean` ends exactly what a dead study left: same pid, same start time, same boot; nothing else is ever signalled."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runner.engines import clean as clean_module
from runner.engines import process
from runner.engines.clean import clean
from runner.engines.ledger import Entry, Ledger, Owner, books, read
from tests.engines.owned_programs import SLEEP, until

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that are ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def _start(argv: list[str] = SLEEP, **environment: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(argv, env={**os.environ, **environment}))
        return started[-1]

    yield _start
    for each in started:
        each.kill()
        each.wait()


def dead_owner(**changes: object) -> Owner:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return replace(Owner.this_process("dead-study"), pid=ended.pid, start=1, **changes)  # type: ignore[arg-type]


def write(folder: Path, owner: Owner, *entries: Entry, tail: str = "") -> Path:
    path = folder / "ledger" / f"{owner.study}-{owner.pid}-{len(list(folder.glob('ledger/*')))}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"owner": asdict(owner)}), *(json.dumps({"entry": asdict(entry)}) for entry in entries)]
    path.write_text("\n".join(lines) + "\n" + tail)
    return path


def entry(of: "subprocess.Popen[bytes]", **changes: object) -> Entry:
    assert until(lambda: process.look(of.pid) is not None)
    return replace(Entry(of.pid, process.start_of(of.pid) or 0, "server", "b1-p0-base-a1"), **changes)  # type: ignore[arg-type]


def test_it_ends_what_matches_and_its_children(tmp_path: Path, start: Start) -> None:
    server = start([sys.executable, "-c", "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"])
    assert until(lambda: process.descendants([server.pid]))
    child = process.descendants([server.pid])[0]
    path = write(tmp_path, dead_owner(), entry(server))
    report = clean(tmp_path)
    assert {server.pid, child.pid} == {ended.pid for ended in report.ended}
    assert server.wait(1) != 0 and not process.is_live(child.pid, child.start)
    assert report.clean and report.removed == 1 and not path.exists()
    assert f"pid {server.pid} of study dead-study" in str(report)
    assert str(clean(tmp_path)) == "nothing was left behind"


@pytest.mark.parametrize(
    ("owner", "change"),
    [
        ({}, {"start": 12345}),  # the pid was given to another process
        ({"boot": "another-boot"}, {}),
        ({"namespace": "pid:[1]"}, {}),
    ],
    ids=["reused pid", "before a reboot", "another pid namespace"],
)
def test_it_signals_nothing_that_does_not_match(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, owner: dict[str, str], change: dict[str, int]
) -> None:
    bystander = start()
    signalled: list[int] = []
    monkeypatch.setattr(clean_module.process, "send", lambda pid, *_: signalled.append(pid) or True)
    write(tmp_path, dead_owner(**owner), entry(bystander, **change))
    report = clean(tmp_path)
    assert signalled == [] and report.ended == () and bystander.poll() is None
    # What cannot be judged from here is kept and said, what is certainly over is removed.
    assert bool(report.kept) == ("namespace" in owner)


def test_a_study_that_lives_is_left_alone(tmp_path: Path, start: Start) -> None:
    server = start()
    write(tmp_path, Owner.this_process("live-study"), entry(server))
    report = clean(tmp_path)
    assert report.alive == ("live-study",) and report.ended == () and server.poll() is None
    assert len(books(tmp_path)) == 1


def test_what_carries_the_token_is_ours_even_without_its_parents(tmp_path: Path, start: Start) -> None:
    ours = start(**{process.TOKEN_VARIABLE: "a" * 32})
    other = start(**{process.TOKEN_VARIABLE: "b" * 32})
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert until(lambda: process.environment(ours.pid) and process.environment(other.pid))
    write(tmp_path, dead_owner(), Entry(ended.pid, 1, "server", token="a" * 32))
    report = clean(tmp_path)
    assert [each.pid for each in report.ended] == [ours.pid] and other.poll() is None


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_module, "TERMINATE_S", 0.2)
    ready = tmp_path / "ready"
    program = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(600)"
    server = start([sys.executable, "-c", program])
    assert until(ready.exists)
    write(tmp_path, dead_owner(), entry(server))
    assert [each.how for each in clean(tmp_path).ended] == ["killed"] and server.wait(1) == -9


def test_struck_out_and_torn_lines_count_for_nothing(tmp_path: Path, start: Start) -> None:
    server = start()
    path = write(tmp_path, dead_owner(), entry(server, token="t1"), tail='{"gone": "t1"}\n{"entry": {"pid": ')
    assert read(path) is not None and clean(tmp_path).ended == () and server.poll() is None


def test_the_ledger_is_written_and_struck_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "a study/with: signs")
    assert not books(tmp_path), "no file before the first entry"
    ledger.add(Entry(1234, 5, "server", "l1", "t1"))
    ledger.add(Entry(1235, 6, "child", "l1", "t1"))
    ledger.add(Entry(1, 2, "guard"))
    (book,) = books(tmp_path)
    assert book.owner.alive and book.owner.study == "a study/with: signs" and len(book.entries) == 3
    ledger.gone("t1")
    assert [each.role for each in books(tmp_path)[0].entries] == ["guard"]
    ledger.close()
    assert not books(tmp_path)


def test_containers_are_ended_by_id_and_only_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def runtime(*argv: str) -> "subprocess.CompletedProcess[str]":
        asked.append(argv)
        return subprocess.CompletedProcess(list(argv), 0, "true", "")

    monkeypatch.setattr(clean_module, "_runtime", runtime)
    cid = tmp_path / "container.id"
    cid.write_text("0123456789abcdef")
    ended = subprocess.Popen(["true"])
    ended.wait()
    write(tmp_path, dead_owner(), Entry(ended.pid, 1, "server", "l", "t", {"runtime": "/usr/bin/docker", "cidfile": str(cid)}))
    report = clean(tmp_path)
    assert report.containers == ("0123456789ab",)
    assert asked[-1] == ("/usr/bin/docker", "rm", "--force", "0123456789abcdef")
    write(tmp_path, dead_owner(), Entry(ended.pid, 1, "server", "l", "t", {"runtime": "/usr/bin/docker", "cidfile": str(cid)}))
    monkeypatch.setattr(clean_module.os, "getuid", lambda: 4242)
    asked.clear()
    assert "must clean it" in str(clean(tmp_path)) and not asked


def test_a_ledger_speaks_for_its_own_users_processes_only(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is open to all: a ledger that names somebody else's process must not make that one end it."""
    server = start()
    write(tmp_path, dead_owner(user=1), entry(server))
    monkeypatch.setattr(process, "user_of", lambda pid: os.getuid() + 1)
    assert clean(tmp_path).ended == () and server.poll() is None
