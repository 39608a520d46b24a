"""The life cycle against a real SGLang on a CPU: ready, ownership, a killed scheduler, stop. One launch, since each takes a minute."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engines import process, sharedmemory
from runner.engines.base import LaunchFailed, LaunchOrder
from runner.engines.guard import GuardedOwner
from runner.engines.ledger import Ledger, books
from runner.engines.sglang import SglangEngine
from runner.engines.tiny_models import made_model
from runner.spec.engine import EngineSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from tests.engines.owned_programs import until

pytestmark = pytest.mark.engine
PYTHON = os.environ.get("ENGINE_PYTHON") or str(Path(__file__).parents[2] / ".venv-engine/bin/python")
OPTIONS = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "max-total-tokens": 16384,
    "mem-fraction-static": 0.3,
    "max-running-requests": 64,
    "sleep-on-idle": True,
    "enable-metrics": True,
}


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[GuardedOwner]:
    with GuardedOwner(Ledger(tmp_path, "engine-test")) as made:
        yield made


def order_of(folder: Path) -> LaunchOrder:
    spec = EngineSpec(kind="sglang", python=PYTHON, cache_root=str(folder / "caches"))
    path = made_model("dense-cpu", folder / "models", PYTHON)
    model = ModelSpec(name="dense-cpu", path=str(path), hidden_size=64, num_layers=2, load_format="dummy")
    node = NodeSpec(name="cpu", gpus=0, gpu_model="none", capability=0, memory_gb=0, link="none", link_gb_s=1)
    (folder / "launch").mkdir()
    return LaunchOrder(
        study="engine-test",
        launch="launch",
        arm="baseline",
        levels={},
        options=OPTIONS,
        env={"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"},
        folder=str(folder / "launch"),
        engine=spec,
        model=model,
        node=node,
    )


def test_life_of_a_real_server(owner: GuardedOwner, tmp_path: Path) -> None:
    order = order_of(tmp_path)
    engine = SglangEngine(order.engine)
    identity = engine.identify()
    assert identity.packages["torch"] and len(identity.build) == 16
    segments = sharedmemory.present()
    server = engine.start(order, owner)
    stages: list[str] = []
    ready = server.wait_ready(stages.append)
    order_of_stages = ["bind", "distributed", "weights", "kv", "warmup", "ready"]
    assert stages == [stage for stage in order_of_stages if stage in stages], "a stage that took no time may be missed, never reordered"
    assert {"bind", "weights", "ready"} <= set(stages)
    info = server.describe()
    assert info["version"] == identity.version and info["max_total_num_tokens"] == 16384
    assert "sglang:" in server.metrics() and server.reset() and server.alive()

    members = server._members()
    (token,) = {process.environment(seen.pid).get(process.TOKEN_VARIABLE) for seen in members}
    assert token is not None, "process titles leave the token readable, by which children are known"
    (book,) = books(tmp_path)
    schedulers = [seen for seen in members if "scheduler" in process.command_line(seen.pid)]
    assert len(schedulers) == 1 and schedulers[0].pid in {entry.pid for entry in book.entries}

    os.kill(schedulers[0].pid, signal.SIGKILL)
    assert until(lambda: not server.alive(), 2), "noticed at once, long before the parent ends itself"
    stopped = server.stop()
    assert stopped.how in ("terminated", "killed", "already_dead") and stopped.seconds < 20
    assert not any(process.is_live(seen.pid, seen.start) for seen in members)
    assert not [name for name in sharedmemory.present() - segments if "sglang" in name], "its shared memory went with it"
    assert ready.pid is not None
    with pytest.raises(LaunchFailed):
        server.describe()
