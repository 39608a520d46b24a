"""A server that somebody else runs: measured as it is, never stopped, and no arm that differs from it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engines.attached import AttachedEngine
from runner.engines.base import LaunchFailed, LaunchOrder
from runner.engines.gpus import Gpus
from runner.engines.guard import GuardedOwner
from runner.engines.httpserver import HttpServer
from runner.engines.ledger import Ledger
from runner.engines.sglang import SglangEngine
from runner.errors import UserError
from runner.spec.engine import Deadlines, EngineSpec
from runner.spec.model import ModelSpec
from tests.engines import fake_sglang
from tests.engines.contract_cases import Case
from tests.engines.simulated.support import PlainOwner
from tests.engines.test_contract import test_identifies_itself as identifies_itself
from tests.engines.test_contract import test_reset_is_refused_while_a_request_runs as reset_is_refused_while_a_request_runs
from tests.engines.test_contract import test_serves_and_stops as serves_and_stops
from tests.engines.test_sglang import order_of

MODEL = ModelSpec(name="theirs", path=None, hidden_size=64, num_layers=2)


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[HttpServer]:
    """Somebody's running server, with --tp-size 8."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    spec = EngineSpec(
        kind="sglang",
        python=sys.executable,
        extra_python_path=(str(fake_sglang.write(tmp_path / "site")),),
        cache_root=str(tmp_path / "caches"),
        port_range=(24000, 24499),
    )
    model = MODEL.model_copy(update={"path": str(tmp_path / "model"), "load_format": "dummy"})
    (tmp_path / "theirs" / "l1").mkdir(parents=True)
    with GuardedOwner(Ledger(tmp_path, "theirs"), grace=0.2) as owner:
        order = order_of(spec, model, tmp_path / "theirs", options={"tp-size": 8, "enable-metrics": True})
        server = SglangEngine(spec, Gpus(None)).start(order, owner)
        server.wait_ready()
        yield server


def order_at(url: str, folder: Path, **changes: object) -> LaunchOrder:
    spec = EngineSpec(kind="attached", url=url, deadlines=Deadlines(warmup_s=0.3))
    return order_of(spec, MODEL, folder, **{"env": {}, **changes})


def case_of(server: HttpServer) -> Case:
    return Case(
        name="attached",
        engine=lambda order: AttachedEngine(order.engine),
        serving=lambda folder: order_at(server.url, folder),
        owns=False,
    )


@pytest.mark.parametrize("demand", [serves_and_stops, reset_is_refused_while_a_request_runs])
def test_contract(theirs: HttpServer, tmp_path: Path, demand: object) -> None:
    demand(case_of(theirs), tmp_path, PlainOwner())  # type: ignore[operator]
    assert theirs.alive(), "it is left running"


def test_identity(theirs: HttpServer, tmp_path: Path) -> None:
    identifies_itself(case_of(theirs), tmp_path)
    assert AttachedEngine(order_at(theirs.url, tmp_path).engine).identify().version == fake_sglang.VERSION


def test_an_arm_that_equals_the_server_is_measured(theirs: HttpServer, tmp_path: Path) -> None:
    order = order_at(theirs.url, tmp_path, options={"tp-size": 8, "enable-metrics": True, "enable-mscclpp": False, "port": 1})
    server = AttachedEngine(order.engine).start(order, PlainOwner())
    ready = server.wait_ready()
    assert ready.pid is None and server.log.read_text() == "" and server.exit_code() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"enable-mscclpp": True}}, r"--enable-mscclpp True \(the server has no such argument\)"),
        ({"options": {"tp-size": 4}}, r"--tp-size 4 \(the server has 8\)"),
        ({"env": {"NCCL_ALGO": "Ring"}}, "variable NCCL_ALGO=Ring"),
        ({"patches": ("sm120_fusion",)}, "patch sm120_fusion"),
        ({"overlay": "/overlay"}, "an overlay"),
    ],
)
def test_an_arm_that_differs_is_refused(theirs: HttpServer, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    order = order_at(theirs.url, tmp_path, arm="treated", **changes)
    with pytest.raises(UserError, match=f"arm treated cannot be measured on an attached server.*{words}"):
        AttachedEngine(order.engine).start(order, PlainOwner())


def test_nobody_there(tmp_path: Path) -> None:
    order = order_at("http://127.0.0.1:9", tmp_path)
    with pytest.raises(UserError, match="no SGLang server answers there"):
        AttachedEngine(order.engine).identify()
    with pytest.raises(LaunchFailed, match=r"127\.0\.0\.1:9"):
        AttachedEngine(order.engine).start(order, PlainOwner())


@pytest.mark.parametrize(
    ("url", "words"), [(None, "needs the server's address"), ("localhost:30000", "no address"), ("ftp://x", "no address")]
)
def test_addresses_that_are_none(url: str | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        AttachedEngine(EngineSpec(kind="attached", url=url))


def test_a_password_in_the_address_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        AttachedEngine(order_at("http://me:planted-secret@127.0.0.1:9", tmp_path).engine).identify()
    assert "planted" not in str(refused.value)


def test_a_server_that_goes_away_is_noticed(theirs: HttpServer, tmp_path: Path) -> None:
    order = order_at(theirs.url, tmp_path)
    server = AttachedEngine(order.engine).start(order, PlainOwner())
    server.wait_ready()
    pid = theirs._owned.pid
    os.kill(pid, 9)
    assert theirs._owned.wait_gone(5) or theirs.stop()
    assert not server.alive() and server.metrics() == "" and not server.reset()
    with pytest.raises(LaunchFailed):
        server.describe()
    with pytest.raises(LaunchFailed, match=r"did not answer 200 for 0\.3 s"):
        server.wait_ready()
