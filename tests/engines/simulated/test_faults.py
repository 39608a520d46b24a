"""Every fault: the words, the exit, and what the watching side makes of it."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from runner.engines.base import LaunchFailed, Server
from runner.engines.simulated.engine import SimulatedEngine
from runner.engines.simulated.faults import KINDS, check, faults_of
from runner.errors import UserError
from runner.spec.engine import Deadlines, Simulation
from tests.engines.simulated.support import PlainOwner, order_of


@pytest.fixture
def owner() -> Iterator[PlainOwner]:
    owner = PlainOwner()
    try:
        yield owner
    finally:
        owner.close()


def start(
    folder: Path, owner: PlainOwner, *faults: dict[str, Any], version: str = "0.5.9", deadlines: dict[str, float] | None = None, **more: Any
) -> Server:
    order = order_of(folder, version=version, simulation={"faults": faults, "load_s": 0.05}, **more)
    if deadlines:
        engine = order.engine.model_copy(update={"deadlines": Deadlines(**deadlines)})
        order = order.model_copy(update={"engine": engine})
    return SimulatedEngine(order.engine).start(order, owner)


def failed(server: Server) -> LaunchFailed:
    with pytest.raises(LaunchFailed) as caught:
        server.wait_ready()
    server.stop()
    return caught.value


def until(what: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def ask(server: Server, tokens: int = 4, stream: bool = False, place: int = 0, **more: Any) -> requests.Response:
    body = {"input_ids": [place + 3, 5, 6], "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, "stream": stream, **more}
    return requests.post(f"{server.url}/generate", json=body, timeout=10)


@pytest.mark.parametrize(
    ("fault", "version", "words", "exit_code"),
    [
        ({"kind": "crash"}, "0.5.9", "an illegal memory access was encountered", -9),
        ({"kind": "cuda_oom"}, "0.5.9", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", -9),
        ({"kind": "cuda_oom", "at": "graphs"}, "0.5.15", "Capture cuda graph failed: CUDA out of memory", -9),
        ({"kind": "nccl_error"}, "0.5.15", "NCCL error in:", -9),
        ({"kind": "os_oom"}, "0.5.9", "Rank 0 scheduler is dead. Please check if there are relevant logs.", 1),
        ({"kind": "os_oom"}, "0.5.23", "Rank 0 scheduler died during initialization (exit code: -9)", 1),
        ({"kind": "port_taken"}, "0.5.9", "error while attempting to bind on address", 1),
        ({"kind": "port_taken"}, "0.5.23", "error while attempting to bind on address", 3),
    ],
)
def test_a_start_fails_in_sglangs_words(
    tmp_path: Path, owner: PlainOwner, fault: dict[str, Any], version: str, words: str, exit_code: int
) -> None:
    server = start(tmp_path, owner, fault, version=version)
    failed(server)
    assert words in server.log.read_text()
    assert server.exit_code() == exit_code
    assert not owner.processes[0].tree()
    if fault["kind"] == "port_taken":
        assert "ready to roll" in server.log.read_text(), "the real one says so too"


def test_a_hang_at_launch_is_silent(tmp_path: Path, owner: PlainOwner) -> None:
    server = start(
        tmp_path,
        owner,
        {"kind": "hang"},
        deadlines={"silent_s": 0.3, "graphs_s": 0.3, "compile_s": 0.3, "drain_s": 0.2, "terminate_s": 0.3},
    )
    failure = failed(server).failure
    assert server.log.read_text().rstrip().splitlines()[-1].endswith("]"), "the last line is the list of graph sizes"
    assert failure.stage == "graphs"
    assert not owner.processes[0].tree()


def test_a_real_port_conflict_is_found(tmp_path: Path, owner: PlainOwner) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        log = tmp_path / "server.log"
        order = order_of(tmp_path, version="0.5.23")
        path = tmp_path / "order.json"
        path.write_text(order.model_dump_json())
        import sys

        argv = [sys.executable, "-m", "runner.engines.simulated", "--order", str(path), "--port", str(other.getsockname()[1])]
        process = owner.spawn(argv, {**os.environ, "PYTHONPATH": str(Path.cwd())}, log)
        until(lambda: process.poll() is not None)
        assert process.poll() == 3
        assert "[Errno 98] error while attempting to bind" in log.read_text()


@pytest.mark.parametrize(
    ("kind", "words"), [("crash", "illegal memory access"), ("cuda_oom", "CUDA out of memory"), ("nccl_error", "NCCL error in")]
)
def test_a_crash_under_load_ends_the_streams_without_done(tmp_path: Path, owner: PlainOwner, kind: str, words: str) -> None:
    server = start(tmp_path, owner, {"kind": kind, "after_requests": 3})
    server.wait_ready()
    for place in range(2):
        assert ask(server, place=place).status_code == 200
    with pytest.raises(requests.exceptions.RequestException):
        ask(server, tokens=5000, stream=True)
    until(lambda: server.exit_code() is not None)
    assert server.exit_code() == -signal.SIGKILL
    assert words in server.log.read_text()
    assert not server.alive()


@pytest.mark.parametrize(("version", "dies"), [("0.5.9", False), ("0.5.15", True)])
def test_a_killed_scheduler_under_load_depends_on_the_version(tmp_path: Path, owner: PlainOwner, version: str, dies: bool) -> None:
    server = start(tmp_path, owner, {"kind": "os_oom", "after_requests": 1}, version=version)
    server.wait_ready()
    with pytest.raises(requests.exceptions.RequestException):
        requests.post(f"{server.url}/generate", json={"input_ids": [1, 2]}, timeout=0.3)
    until(lambda: not server.alive())
    if dies:
        until(lambda: server.exit_code() is not None)
        assert "crashed with exit code -9. Triggering SIGQUIT for cleanup" in server.log.read_text()
    else:
        assert server.exit_code() is None
        assert requests.get(f"{server.url}/model_info", timeout=5).status_code == 200, "HTTP goes on, nothing is behind it"
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(f"{server.url}/generate", json={"input_ids": [1, 2]}, timeout=0.3)


def test_a_hang_under_load_leaves_http_up(tmp_path: Path, owner: PlainOwner) -> None:
    server = start(tmp_path, owner, {"kind": "hang", "after_requests": 2}, deadlines={"drain_s": 0.2, "terminate_s": 0.3})
    server.wait_ready()
    assert ask(server).status_code == 200
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(f"{server.url}/generate", json={"input_ids": [1, 2]}, timeout=0.3)
    assert server.alive()
    assert requests.get(f"{server.url}/model_info", timeout=5).status_code == 200
    assert server.stop().how in ("killed", "terminated")
    assert not owner.processes[0].tree()


def test_errors_and_cuts_inside_streams(tmp_path: Path, owner: PlainOwner) -> None:
    error = start(tmp_path / "a", owner, {"kind": "stream_error", "after_requests": 2})
    cut = start(tmp_path / "b", owner, {"kind": "truncated_stream", "after_requests": 2})
    for server in (error, cut):
        server.wait_ready()
        assert "[DONE]" in ask(server, stream=True).text
    answer = ask(error, tokens=20, stream=True)
    assert answer.status_code == 200
    assert '"error":{"message":' in answer.text
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        ask(cut, tokens=20, stream=True)


def test_wrong_outputs_and_nan(tmp_path: Path, owner: PlainOwner) -> None:
    servers = [
        start(tmp_path / name, owner, *faults)
        for name, faults in (("ok", []), ("wrong", [{"kind": "wrong_output"}]), ("nan", [{"kind": "nan"}]))
    ]
    answers = []
    for server in servers:
        server.wait_ready()
        answers.append(ask(server, return_logprob=True, logprob_start_len=0).json())
    right, wrong, nan = answers
    shifts = [
        row[0] - other[0] for row, other in zip(*(each["meta_info"]["input_token_logprobs"][1:] for each in (wrong, right)), strict=True)
    ]
    assert all(0.4 < shift < 0.6 for shift in shifts)
    assert wrong["output_ids"] != right["output_ids"]
    assert [row[0] for row in nan["meta_info"]["input_token_logprobs"]] == [None, None, None]
    assert "NaN in the logits" in servers[2].log.read_text()


def test_an_orphan_outlives_its_server(tmp_path: Path, owner: PlainOwner) -> None:
    server = start(tmp_path, owner, {"kind": "orphan"})
    ready = server.wait_ready()
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGKILL)
    until(lambda: server.exit_code() is not None)
    time.sleep(0.1)
    (orphan,) = owner.processes[0].tree()
    os.kill(orphan, signal.SIGTERM)
    time.sleep(0.1)
    assert owner.processes[0].tree() == [orphan], "it ignores SIGTERM"
    server.stop()
    assert owner.processes[0].tree() == []


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path, owner: PlainOwner) -> None:
    server = start(tmp_path, owner, {"kind": "ignore_sigterm"}, deadlines={"drain_s": 0.2, "terminate_s": 0.3})
    server.wait_ready()
    assert server.stop().how == "killed"
    assert not owner.processes[0].tree()


def test_a_slow_stop_takes_its_time(tmp_path: Path, owner: PlainOwner) -> None:
    server = start(tmp_path, owner, {"kind": "slow_stop", "value": 0.6})
    server.wait_ready()
    stopped = server.stop()
    assert stopped.how == "terminated"
    assert stopped.seconds >= 0.6


def test_sigterm_drains_and_the_exit_code_follows_the_version(tmp_path: Path, owner: PlainOwner) -> None:
    for version, code in (("0.5.15", -9), ("0.5.20", 0)):
        server = start(tmp_path / version, owner, version=version)
        server.wait_ready()
        assert server.stop().exit_code == code
        assert "Gracefully exiting... Remaining number of requests 0" in server.log.read_text()


def test_which_launches_a_fault_falls_on() -> None:
    def falls(fault: dict[str, Any], arm: str = "a", launch: int = 0, block: int = 0) -> bool:
        return bool(faults_of([{"kind": "crash", **fault}], arm, {"mscclpp": "on"}, launch, block, 1))

    assert falls({})
    assert falls({"arm": "a"}) and not falls({"arm": "b"}) and falls({"arm": "a*"})
    assert falls({"launch": 0}) and not falls({"launch": 1}) and falls({"launch": [0, 3]})
    assert falls({"block": 0}) and not falls({"block": 1})
    assert falls({"levels": {"mscclpp": "on"}}) and not falls({"levels": {"mscclpp": "off"}})
    hit = sum(falls({"share": 0.3}, launch=launch) for launch in range(500))
    assert 100 < hit < 200


def test_a_fault_that_does_not_exist_is_refused_with_the_choices(tmp_path: Path) -> None:
    assert check([{"kind": kind} for kind in KINDS]) == ""
    for fault, word in (
        ({"kind": "crsh"}, "truncated_stream"),
        ({"kind": "crash", "when": 3}, "after_s"),
        ({"kind": "crash", "at": "noon"}, "weights"),
        ({"kind": "crash", "share": "lots"}, "share must be a number"),
        ({"kind": "crash", "launch": "first"}, "launch must be"),
        ({"kind": "crash", "levels": "on"}, "levels must be a mapping"),
    ):
        assert word in check([fault])
        with pytest.raises(UserError, match=word):
            SimulatedEngine(order_of(tmp_path, simulation={"faults": (fault,)}).engine)
    with pytest.raises(UserError, match="step_us"):
        SimulatedEngine(order_of(tmp_path, simulation={"compute": {"nonsense": 1.0}}).engine)


def test_the_word_nan_of_the_command_line_is_the_faults_name() -> None:
    (fault,) = Simulation.model_validate({"faults": [{"kind": float("nan"), "launch": 2}]}).faults
    assert fault == {"kind": "nan", "launch": 2} and check([fault]) == ""
