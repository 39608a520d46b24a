"""What every engine must do. An engine joins by a Case in contract_cases.py."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from runner.engines.base import LaunchFailed, Server
from tests.engines.contract_cases import CASES, Case
from tests.engines.owned_programs import until
from tests.engines.simulated.support import PlainOwner

OWNING = [case for case in CASES if case.owns]


@pytest.fixture
def owner() -> Iterator[PlainOwner]:
    owner = PlainOwner()
    try:
        yield owner
    finally:
        owner.close()


def started(case: Case, folder: Path, owner: PlainOwner) -> Server:
    order = case.serving(folder)
    return case.engine(order).start(order, owner)


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_identifies_itself(case: Case, tmp_path: Path) -> None:
    engine = case.engine(case.serving(tmp_path))
    identity = engine.identify()
    assert identity.kind == engine.kind
    assert identity.simulated == (engine.kind == "simulated")
    assert identity.version
    assert identity.build


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_serves_and_stops(case: Case, tmp_path: Path, owner: PlainOwner) -> None:
    began = time.monotonic()
    server = started(case, tmp_path, owner)
    assert time.monotonic() - began < 10, "start returns at once, wait_ready is what waits"
    stages: list[str] = []
    try:
        ready = server.wait_ready(stages.append)
        assert ready.url == server.url
        assert all(seconds >= 0 for seconds in ready.stages.values())
        if case.owns:
            assert stages, "progress names at least one stage"
            assert ready.pid is not None
            assert server.command.argv
            assert "ready to roll" in server.log.read_text()
        assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
        info = server.describe()
        assert info["version"]
        assert info["internal_states"]
        assert "sglang:num_requests_total" in server.metrics()
        assert server.reset() is True
        assert server.alive() is True
        assert server.fallen() is None
        assert server.exit_code() is None
    finally:
        stopped = server.stop()
    if case.owns:
        assert stopped.how in ("terminated", "killed")
        assert not server.alive()
        assert server.exit_code() is not None
        assert not [pid for process in owner.processes for pid in process.tree()]
    else:
        assert stopped.how == "left_running"
    assert server.stop() == stopped, "a second stop changes nothing"


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_reset_is_refused_while_a_request_runs(case: Case, tmp_path: Path, owner: PlainOwner) -> None:
    server = started(case, tmp_path, owner)
    try:
        server.wait_ready()
        body = {"input_ids": [11, 12, 13], "sampling_params": {"max_new_tokens": 20000, "ignore_eos": True}, "stream": True}
        with requests.post(f"{server.url}/generate", json=body, stream=True, timeout=10) as answer:
            lines = answer.iter_lines()  # kept: a dropped iterator closes the connection
            next(lines)
            assert server.reset() is False
        end = time.monotonic() + 5
        while not server.reset():
            assert time.monotonic() < end, "the request's end frees the cache"
    finally:
        server.stop()


@pytest.mark.parametrize("case", [case for case in CASES if case.refused], ids=by_name)
def test_a_refused_launch_fails_with_the_engines_sentence(case: Case, tmp_path: Path, owner: PlainOwner) -> None:
    assert case.refused is not None
    order = case.refused(tmp_path)
    server = case.engine(order).start(order, owner)
    with pytest.raises(LaunchFailed) as failed:
        server.wait_ready()
    failure = failed.value.failure
    assert case.sentence in failure.line
    assert failure.exit_code == case.exit_code
    stopped = server.stop()
    assert stopped.how == "already_dead"
    assert not server.alive()


@pytest.mark.parametrize("case", OWNING, ids=by_name)
def test_a_dead_server_is_noticed(case: Case, tmp_path: Path, owner: PlainOwner) -> None:
    server = started(case, tmp_path, owner)
    ready = server.wait_ready()
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGKILL)
    end = time.monotonic() + 5
    while server.alive() or server.exit_code() is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert server.exit_code() == -signal.SIGKILL
    with pytest.raises(LaunchFailed):
        server.describe()
    assert server.metrics() == ""
    assert server.reset() is False
    assert server.stop().how == "already_dead"
    assert not [pid for process in owner.processes for pid in process.tree()]


@pytest.mark.parametrize("case", OWNING, ids=by_name)
def test_a_dead_child_is_noticed(case: Case, tmp_path: Path, owner: PlainOwner) -> None:
    server = started(case, tmp_path, owner)
    try:
        ready = server.wait_ready()
        children = [pid for pid in owner.processes[-1].tree() if pid != ready.pid]
        assert children, "the server has children, as the real one has"
        os.kill(children[0], signal.SIGKILL)
        end = time.monotonic() + 5
        while server.alive():
            assert time.monotonic() < end
            time.sleep(0.01)
        failure = server.fallen()
        assert failure is not None and failure.kind == "scheduler_died", failure
        assert failure.retry == "once", "a kill from outside closes no arm"
        assert until(lambda: server.exit_code() is not None, 10), "what is left is ended: nobody waits for an answer"
    finally:
        server.stop()
    assert not [pid for process in owner.processes for pid in process.tree()]
