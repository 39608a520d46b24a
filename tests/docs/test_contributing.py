"""Every worked example of CONTRIBUTING.md, run as it stands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.analysis.judge import judge
from runner.engines.base import LaunchOrder
from runner.loadgen.guard import is_right, score_tasks
from runner.records.schema import Fingerprint
from runner.spec.engine import EngineSpec
from runner.spec.protocol import Protocol
from tests.analysis.example import measured, plan
from tests.docs.conftest import Planned
from tests.docs.examples import examples, write
from tests.engines import fake_sglang
from tests.engines.simulated.support import PlainOwner, order_of

DOCUMENT = "CONTRIBUTING.md"


def names_of(example: str) -> dict[str, Any]:
    """The names that a Python example defines."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(examples(DOCUMENT)[example], example, "exec"), names)
    return names


# --- factor and workload ---------------------------------------------------------------------------------------------
def test_the_factor_makes_arms(planned: Planned, tmp_path: Path) -> None:
    folder = write(DOCUMENT, tmp_path / "own", "factor/stream_interval.yaml", "experiment/streaming.yaml")
    shown = planned(folder, "+experiment=streaming", "engine.version=0.5.9", "grid.stream_interval=['1','8',late]")
    assert shown["factors"] == ["stream_interval"]
    arms = {arm["name"]: arm for arm in shown["arms"]}
    assert set(arms) == {"baseline", "stream_interval=8"}
    assert arms["stream_interval=8"]["options"]["stream-interval"] == 8
    refused = next(cell for cell in shown["cells"] if cell["levels"]["stream_interval"] == "late")
    assert refused["status"] == "REJECTED"
    assert "needs engine >=0.5.12" in refused["reason"]


def test_the_workload_gives_phases(planned: Planned, tmp_path: Path) -> None:
    folder = write(DOCUMENT, tmp_path / "own", "workload/short_chat.yaml")
    shown = planned(folder, "+experiment=overlap_grid", "workload=short_chat", "phases=[chat_c8,chat_2rps]")
    assert shown["phases"] == ["chat_c8", "chat_2rps"]


# --- guards ----------------------------------------------------------------------------------------------------------
class Answers:
    """Plays an HTTP session whose server answers each prompt with the text given for it."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def post(self, url: str, json: dict[str, Any], timeout: float) -> Any:
        text = self.texts[json["text"]]
        return type("Answer", (), {"status_code": 200, "json": lambda self: {"text": text}})()


def test_scored_tasks_are_read(tmp_path: Path) -> None:
    write(DOCUMENT, tmp_path, "tasks.jsonl")
    tasks = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    prompts = [task.get("prompt", task.get("question")) for task in tasks]
    right = dict(zip(prompts, ["He has 3 and 4, that makes 7.", " Paris."], strict=True))
    half = dict(zip(prompts, ["He has 8.", " Paris."], strict=True))
    assert score_tasks("http://x", tmp_path / "tasks.jsonl", Answers(right))[0] == 1.0  # type: ignore[arg-type]
    assert score_tasks("http://x", tmp_path / "tasks.jsonl", Answers(half))[0] == 0.5  # type: ignore[arg-type]
    assert is_right("so 7", tasks[0]["answer"])


def test_another_guard_decides_an_arm() -> None:
    guard = names_of("guard.py")["same_tokens"]

    def printed(token: int) -> Fingerprint:
        return Fingerprint(prompts_hash="h", logprobs=((-1.0, -2.0),), tokens=((1, token),))

    assert guard([printed(2)], [printed(2)]).state == "cannot_tell"
    rng = np.random.default_rng(1)
    launches = [
        record.model_copy(update={"fingerprint": printed(3 if record.arm == "strange" else 2)})
        for record in measured(rng, ["baseline", "same", "strange"], 3)
    ]
    levels = {"baseline": {"m": "off"}, "same": {"m": "on"}, "strange": {"m": "far"}}
    decision = judge(plan(levels), launches, Protocol(min_blocks=3, max_blocks=3), guard=guard)
    statuses = {arm.name: arm.status for arm in decision.arms}
    assert statuses == {"baseline": "BASELINE", "same": "MEASURED", "strange": "BROKEN"}


# --- engine ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def owner() -> Iterator[PlainOwner]:
    owner = PlainOwner()
    try:
        yield owner
    finally:
        owner.close()


@pytest.fixture
def order(tmp_path: Path) -> LaunchOrder:
    """An order whose interpreter finds `my_server`, a stand-in that speaks SGLang's HTTP and log."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "my_server.py").write_text(fake_sglang.SERVER)
    made = order_of(tmp_path / "launch", base={}, options={"enable-metrics": True}, port_range=(24500, 24999))
    return made.model_copy(update={"env": {"PYTHONPATH": str(site)}})


def test_the_engine_passes_the_heart_of_the_contract(order: LaunchOrder, owner: PlainOwner) -> None:
    engine = names_of("engine.py")["MyEngine"](EngineSpec(kind="sglang"))
    identity = engine.identify()
    assert (identity.kind, identity.simulated) == (engine.kind, False)
    server = engine.start(order, owner)
    stages: list[str] = []
    try:
        ready = server.wait_ready(stages.append)
        assert stages
        assert ready.pid is not None
        assert server.describe()["version"]
        assert "sglang:num_requests_total" in server.metrics()
        assert server.reset()
        assert server.alive()
    finally:
        stopped = server.stop()
    assert stopped.how in ("terminated", "killed")
    assert not server.alive()
    assert not [pid for process in owner.processes for pid in process.tree()]
    assert server.stop() == stopped
