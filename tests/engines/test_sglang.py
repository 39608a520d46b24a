"""The life cycle of an SGLang process, against a stand-in package that is found by its path."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.engines import process
from runner.engines.base import LaunchFailed, LaunchOrder
from runner.engines.gpus import Gpus
from runner.engines.guard import GuardedOwner
from runner.engines.httpserver import HttpServer
from runner.engines.ledger import Ledger, books
from runner.engines.sglang import SglangEngine
from runner.errors import UserError
from runner.spec.engine import Deadlines, EngineSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from tests.engines import fake_sglang
from tests.engines.owned_programs import until

DEADLINES = Deadlines(bind_s=10, distributed_s=1.5, weights_s=10, silent_s=2.5, compile_s=30, drain_s=0.3, terminate_s=1.0)
Launch = Callable[..., HttpServer]


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 64}')
    return ModelSpec(name="tiny", path=str(folder), hidden_size=64, num_layers=2, load_format="dummy")


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    return EngineSpec(
        kind="sglang",
        python=sys.executable,
        extra_python_path=(str(fake_sglang.write(tmp_path / "site")),),
        cache_root=str(tmp_path / "caches"),
        deadlines=DEADLINES,
        port_range=(23000, 23499),
    )


def order_of(spec: EngineSpec, model: ModelSpec, folder: Path, mode: str = "", **changes: object) -> LaunchOrder:
    node = NodeSpec(name="here", gpus=0, gpu_model="none", capability=0, memory_gb=0, link="none", link_gb_s=1)
    words: dict[str, object] = {"study": "s", "launch": "l1", "arm": "base", "levels": {}, "folder": str(folder / "l1"), "engine": spec}
    words |= {"model": model, "node": node, "env": {"FAKE_MODE": mode}} | changes
    return LaunchOrder.model_validate(words)


@pytest.fixture
def launch(tmp_path: Path, spec: EngineSpec, model: ModelSpec) -> Iterator[Launch]:
    """Starts a server in the given mode; whatever was started is ended."""
    owner = GuardedOwner(Ledger(tmp_path, "s"), grace=0.2)
    engine = SglangEngine(spec, Gpus(None))
    (tmp_path / "l1").mkdir()

    def start(mode: str = "", **changes: object) -> HttpServer:
        return engine.start(order_of(spec, model, tmp_path, mode, **changes), owner)

    try:
        yield start
    finally:
        owner.close()


def test_ready_describe_flush_stop(launch: Launch, tmp_path: Path) -> None:
    server = launch(options={"enable-metrics": True, "tp-size": 1, "mem-fraction-static": None})
    stages: list[str] = []
    ready = server.wait_ready(stages.append)
    noticed = time.monotonic()
    late = noticed - float((tmp_path / "l1" / "became-ready").read_text())
    assert late < 1.0, "ready is noticed in about 0.05 s; the limit leaves room for a busy machine"
    assert stages[0] == "bind" and stages[-1] == "ready"
    assert ready.url == server.url and ready.pid is not None and ready.stages["ready"] > 0 and "warmup" in ready.stages
    info = server.describe()
    assert info["version"] == fake_sglang.VERSION and info["api_key"] == "***"
    assert info["asked_health"] == 1, "health may cost a token: it is asked once, when the log says ready"
    assert "num_running_reqs" in server.metrics()
    assert server.reset() and server.alive() and server.exit_code() is None
    (book,) = books(tmp_path)
    assert {entry.role for entry in book.entries} == {"guard", "keeper", "server", "child"}
    stopped = server.stop()
    assert (stopped.how, stopped.exit_code, stopped.memory_free) == ("terminated", 0, None)
    assert server.stop() == stopped and not server.alive()
    assert "abort true" in server.log.read_text()


def test_argv_and_environment(launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", "hf_planted0123456789abcdef")
    monkeypatch.setenv("http_proxy", "http://nowhere.invalid:3128")
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    (tmp_path / "overlay").mkdir()
    server = launch(
        options={"tp-size": 8, "enable-mscclpp": True, "cuda-graph-bs": [1, 2], "api-key": "sk-planted-0123456789ab"},
        env={"NCCL_ALGO": "Ring", "FAKE_MODE": "", "MY_API_KEY": "planted"},
        overlay=str(tmp_path / "overlay"),
    )
    server.wait_ready()
    info = server.describe()
    environment = info["environment"]
    assert environment["NCCL_ALGO"] == "Ring" and environment["HF_HUB_OFFLINE"] == "1"
    assert not {"NCCL_DEBUG", "HF_TOKEN", "http_proxy"} & set(environment)
    assert environment["PYTHONPATH"].split(":") == [str(tmp_path / "overlay"), str(tmp_path / "site")]
    assert environment["TRITON_CACHE_DIR"].startswith(str(tmp_path / "caches"))
    argv = server.command.argv
    assert argv[1:3] == ("-m", "sglang.launch_server")
    assert argv[argv.index("--watchdog-timeout") + 1] == "1800" and argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--cuda-graph-bs") + 1 :][:2] == ("1", "2")
    port, nccl = (int(argv[argv.index(name) + 1]) for name in ("--port", "--nccl-port"))
    assert port != nccl and 23000 <= port <= 23499 and 23000 <= nccl <= 23499
    record = server.command.model_dump_json()
    assert "planted" not in record and "HF_HUB_OFFLINE" in record
    assert server.command.overlay == str(tmp_path / "overlay")


def test_an_overlay_has_caches_of_its_own(launch: Launch, tmp_path: Path) -> None:
    """What one arm's patched source compiled must not serve another arm."""
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "changed.py").write_text("x = 1")
    places = {launch(overlay=None).command.env["TRITON_CACHE_DIR"], launch(overlay=str(overlay)).command.env["TRITON_CACHE_DIR"]}
    (overlay / "changed.py").write_text("x = 2")
    places.add(launch(overlay=str(overlay)).command.env["TRITON_CACHE_DIR"])
    assert len(places) == 3


def test_death_is_noticed_at_once_with_its_exit_code(launch: Launch) -> None:
    server = launch("crash")
    began = time.monotonic()
    with pytest.raises(LaunchFailed) as failed:
        server.wait_ready()
    assert time.monotonic() - began < 20
    assert failed.value.failure.exit_code == -signal.SIGKILL and failed.value.failure.stage == "weights"
    assert "OutOfMemoryError" in failed.value.failure.line and "weights" in failed.value.stages
    assert server.stop().how == "already_dead"


def test_a_refused_option_gives_the_engines_last_words(launch: Launch) -> None:
    with pytest.raises(LaunchFailed) as failed:
        launch("unknown option").wait_ready()
    assert failed.value.failure.exit_code == 2
    assert "unrecognized arguments: --no-such-option" in failed.value.failure.line and len(failed.value.failure.line) < 200


def test_a_hang_ends_at_the_deadline_of_its_stage(launch: Launch) -> None:
    server = launch("hang")
    began = time.monotonic()
    with pytest.raises(LaunchFailed) as failed:
        server.wait_ready()
    assert time.monotonic() - began > 1.5
    assert failed.value.failure.stage == "distributed" and failed.value.failure.exit_code is None
    assert server.stop().how in ("terminated", "killed")


def test_a_growing_cache_is_no_hang(launch: Launch) -> None:
    """Three and a half silent seconds, more than the limit for silence, in which only the compile cache grows."""
    launch("compile").wait_ready()


def test_the_losing_server_of_a_port_conflict_is_not_ready(launch: Launch) -> None:
    with pytest.raises(LaunchFailed):
        launch("port race").wait_ready()


def test_a_listening_stranger_is_not_our_server(launch: Launch) -> None:
    """The port was taken between choice and bind; our process lives and says ready, and the stranger answers."""
    server = launch("elsewhere")
    with socket.create_server(("127.0.0.1", int(server.url.rpartition(":")[2]))), pytest.raises(LaunchFailed) as failed:
        server.wait_ready()
    failure = failed.value.failure
    assert failure.kind == "port_in_use" and failure.retry == "at_once" and f"pid {os.getpid()} (" in failure.line


def test_a_dead_scheduler_is_not_alive(launch: Launch) -> None:
    server = launch("scheduler dies")
    server.wait_ready()
    assert until(lambda: not server.alive(), 3) and server.exit_code() is None


@pytest.mark.parametrize(("mode", "longest"), [("drains", 1.0), ("deaf", 2.0)])
def test_stop_keeps_its_deadlines(launch: Launch, mode: str, longest: float) -> None:
    """A draining server is killed after drain_s (0.3 s), a deaf one after terminate_s (1 s)."""
    server = launch(mode)
    server.wait_ready()
    stopped = server.stop()
    assert stopped.how == "killed" and stopped.exit_code == -signal.SIGKILL and stopped.seconds < longest


@pytest.mark.parametrize("mode", ["busy", "lies"])
def test_reset_tells_when_nothing_was_flushed(launch: Launch, mode: str) -> None:
    """By 400, or by a log line that contradicts a 200."""
    server = launch(mode)
    server.wait_ready()
    assert not server.reset()


def test_describe_of_a_dead_server_is_a_diagnosed_failure(launch: Launch) -> None:
    server = launch()
    pid = server.wait_ready().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: server.exit_code() is not None)
    with pytest.raises(LaunchFailed):
        server.describe()
    assert server.metrics() == "" and not server.reset() and not server.alive()
    assert server.stop().how == "already_dead" and not process.is_live(pid)


def test_a_busy_port_of_the_users_choice_is_named(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is taken by pid {os.getpid()}"):
            launch(options={"port": port})


def test_identity(spec: EngineSpec, tmp_path: Path) -> None:
    first = SglangEngine(spec).identify()
    assert first.version == fake_sglang.VERSION and first.python == sys.executable and not first.simulated
    assert SglangEngine(spec).identify() == first
    edited = tmp_path / "site" / "sglang" / "launch_server.py"
    edited.write_text(edited.read_text() + "\n# edited in place\n")
    assert SglangEngine(spec).identify().build != first.build
    with pytest.raises(UserError, match=r"engine.version=0.5.9 was asked for, but .* has sglang 0.5.15.post1"):
        SglangEngine(spec.model_copy(update={"version": "0.5.9"})).identify()


def test_an_interpreter_without_sglang_is_named(spec: EngineSpec, tmp_path: Path) -> None:
    bare = spec.model_copy(update={"extra_python_path": ()})
    with pytest.raises(UserError, match=f"{sys.executable}: this interpreter has no sglang"):
        SglangEngine(bare).identify()
    with pytest.raises(UserError, match=r"engine\.python=/no/such/python: no such file"):
        SglangEngine(bare.model_copy(update={"python": "/no/such/python"})).identify()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").write_text("#!/bin/sh\n")
    with pytest.raises(UserError, match=r"did you mean .*/venv/bin/python\?"):
        SglangEngine(bare.model_copy(update={"python": str(tmp_path / "venv")})).identify()
    (tmp_path / "liar").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "liar").chmod(0o755)
    with pytest.raises(UserError, match="no working Python interpreter"):
        SglangEngine(bare.model_copy(update={"python": str(tmp_path / "liar")})).identify()


def test_a_model_without_a_path_is_asked_for_first(spec: EngineSpec, model: ModelSpec, tmp_path: Path) -> None:
    order = order_of(spec, model.model_copy(update={"path": None}), tmp_path)
    owner: object = json  # never reached
    with pytest.raises(UserError, match="model tiny has no path: where are its weights"):
        SglangEngine(spec, Gpus(None)).start(order, owner)  # type: ignore[arg-type]
