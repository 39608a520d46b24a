"""The truth is that of the servers: what a quiet live server shows, within the client's error. And nobody who judges reads it."""

import ast
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.engines.simulated.engine import SimulatedEngine
from runner.engines.simulated.truth import true_effects
from runner.records.plan import Arm
from runner.spec.engine import EngineSpec, Simulation
from runner.spec.workload import Lengths, PhaseSpec
from tests.engines.simulated.support import BASE, GLM5, PCIE_NODE, PlainOwner, order_of

RUNNER = Path(__file__).parents[3] / "runner"
MSCCLPP = {**BASE, "enable-mscclpp": True}
PATCHED = {**BASE, "enable-flashinfer-allreduce-fusion": True}
PHASES = {
    "c1": PhaseSpec(concurrency=1, output=Lengths(value=32)),
    "c64": PhaseSpec(concurrency=64, output=Lengths(value=32)),
    "prefill": PhaseSpec(kind="prefill", concurrency=4, input=Lengths(value=4096), output=Lengths(value=4)),
}


def truth(*arms: Arm, version: str = "0.5.9", **simulation: Any) -> dict[str, Any]:
    engine = EngineSpec(kind="simulated", version=version, simulation=Simulation(**simulation))
    return true_effects([Arm(name="baseline", levels={}, options=BASE), *arms], PHASES, PCIE_NODE, GLM5, engine)["arms"]


def mscclpp(size: str) -> Arm:
    return Arm(name=size, levels={"mscclpp": "on"}, options=MSCCLPP, env={"SGLANG_MSCCLPP_MAX_BYTES": size})


def test_mscclpp_helps_in_0_5_9_where_its_bytes_reach_and_nowhere_later() -> None:
    found = truth(mscclpp("256KB"), mscclpp("1MB"))
    effects = {
        arm: {phase: found[arm]["phases"][phase]["tpot_p50_ms"]["effect_pct"] for phase in ("c1", "c64")} for arm in ("256KB", "1MB")
    }
    assert effects["256KB"]["c1"] == effects["1MB"]["c1"] > 10
    assert effects["256KB"]["c64"] == 0 < effects["1MB"]["c64"]
    later = truth(mscclpp("1MB"), version="0.5.15")["1MB"]
    assert later["phases"]["c1"]["tpot_p50_ms"]["effect_pct"] == 0
    assert "mscclpp" not in later["in_force"]


def test_the_sign_is_an_improvement_for_every_metric() -> None:
    phases = truth(mscclpp("1MB"))["1MB"]["phases"]["c64"]
    assert phases["tpot_p50_ms"]["ratio"] < 1 < phases["output_tok_s"]["ratio"]
    assert phases["tpot_p50_ms"]["effect_pct"] > 0 < phases["output_tok_s"]["effect_pct"]


def test_refused_arms_have_a_sentence_and_no_values() -> None:
    found = truth(
        Arm(name="tbo", levels={}, options={**BASE, "enable-two-batch-overlap": True}),
        Arm(name="odd", levels={}, options={**BASE, "no-such-flag": True}),
        Arm(name="sbo", levels={}, options={**BASE, "enable-single-batch-overlap": True}),
    )
    assert "moe_a2a_backend cannot be 'none'" in found["tbo"]["refused"]
    assert "unrecognized arguments: --no-such-flag" in found["odd"]["refused"]
    assert found["tbo"]["phases"] == {}
    assert found["sbo"]["refused"] is None
    assert all(entry["effect_pct"] == 0 for metrics in found["sbo"]["phases"].values() for entry in metrics.values())


def test_extra_effects_of_a_level_are_in_the_truth() -> None:
    arm = Arm(name="x", levels={"new": "on"}, options=BASE)
    found = truth(arm, effects={"new=on": {"tpot_p50_ms": 4.0}})
    assert found["x"]["phases"]["c1"]["tpot_p50_ms"]["effect_pct"] == pytest.approx(4.0, abs=1e-3)
    assert found["x"]["phases"]["prefill"]["ttft_p50_ms"]["effect_pct"] == pytest.approx(0, abs=0.5)


def test_truth_is_json_and_can_be_had_again() -> None:
    assert json.dumps(truth(mscclpp("1MB")), allow_nan=False) == json.dumps(truth(mscclpp("1MB")))


def test_shared_prefixes_and_open_loops_have_a_truth() -> None:
    phases = {
        "prefix": PhaseSpec(concurrency=4, shared_prefix=192, input=Lengths(value=256), output=Lengths(value=4)),
        "plain": PhaseSpec(concurrency=4, input=Lengths(value=256), output=Lengths(value=4)),
        "open": PhaseSpec(
            arrival="poisson", rate=2.0, seconds=20, input=Lengths(kind="uniform", low=50, high=500), output=Lengths(value=16)
        ),
    }
    engine = EngineSpec(kind="simulated", version="0.5.9")
    found = true_effects([Arm(name="baseline", levels={}, options=BASE)], phases, PCIE_NODE, GLM5, engine)["arms"]["baseline"]["phases"]
    assert found["prefix"]["ttft_p50_ms"]["value"] < found["plain"]["ttft_p50_ms"]["value"]
    assert found["open"]["request_s"]["value"] == pytest.approx(2.0, rel=0.5)


@pytest.fixture
def owner() -> Iterator[PlainOwner]:
    owner = PlainOwner()
    try:
        yield owner
    finally:
        owner.close()


@pytest.mark.parametrize("arm", [Arm(name="baseline", levels={}, options=BASE), mscclpp("1MB")], ids=["baseline", "mscclpp"])
def test_a_quiet_server_shows_the_truth(tmp_path: Path, owner: PlainOwner, arm: Arm) -> None:
    scale = 0.25
    engine = EngineSpec(kind="simulated", version="0.5.9", simulation=Simulation(time_scale=scale))
    expected = true_effects([arm], {"c1": PHASES["c1"]}, PCIE_NODE, GLM5, engine)["arms"][arm.name]["phases"]["c1"]
    order = order_of(tmp_path, base={}, options=arm.options, env=arm.env, simulation={"time_scale": scale})
    server = SimulatedEngine(order.engine).start(order, owner)
    server.wait_ready()
    tpots, ttfts = [], []
    for place in range(5):
        sent, times = streamed(server.url, list(range(place * 1000 + 3, place * 1000 + 259)), 32)
        assert len(times) == 32
        tpots.append((times[-1] - times[0]) / 31 * 1e3)
        ttfts.append((times[0] - sent) * 1e3)
    # the machine may be busy: single arrivals are late, the middle of five is the server's clock
    assert statistics.median(tpots) == pytest.approx(expected["tpot_p50_ms"]["value"], rel=0.04)
    assert min(ttfts) == pytest.approx(expected["ttft_p50_ms"]["value"], rel=0.35)


def streamed(url: str, ids: list[int], tokens: int) -> tuple[float, list[float]]:
    """When the request was sent and when each chunk came, through a bare socket: a comfortable client reads too late."""
    body = json.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, "stream": True}).encode()
    host, port = url.removeprefix("http://").split(":")
    times: list[float] = []
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        sent = time.monotonic()
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while True:
            data = connection.recv(1 << 16)
            times += [time.monotonic()] * data.count(b"data: {")
            if b"[DONE]" in data or not data:
                return sent, times


@pytest.mark.parametrize("room", ["analysis", "planning", "reporting", "records", "loadgen", "tracking"])
def test_who_judges_never_imports_the_simulation(room: str) -> None:
    for path in (RUNNER / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            assert not any(name.startswith("runner.engines.simulated") for name in names), f"{path} imports the simulation"


def test_the_server_starts_without_heavy_imports() -> None:
    text = "import sys, runner.engines.simulated.__main__; print([n for n in ('pydantic', 'asyncio', 'numpy', 'requests', 'ssl') if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
