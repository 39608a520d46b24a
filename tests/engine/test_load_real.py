"""The load client against a real SGLang on a CPU: each route, the fingerprint, a profile. One launch, since each takes a minute."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.analysis.outputs import compare
from runner.engines.guard import GuardedOwner
from runner.engines.ledger import Ledger
from runner.engines.sglang import SglangEngine
from runner.loadgen.base import GuardOrder, PhaseOrder
from runner.loadgen.driver import ProcessDriver
from runner.spec.model import ModelSpec
from runner.spec.protocol import Limits
from runner.spec.workload import Lengths, PhaseSpec
from tests.engine.test_lifecycle import order_of

pytestmark = pytest.mark.engine
MODEL = ModelSpec(name="dense-cpu", hidden_size=128, num_layers=2, vocab_size=4096, max_context=16384)
EASY = Limits(dispatch_lag_p99_ms=1000, loop_stall_ms=5000, client_cpu_share=2, littles_law_residual=1)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engine")
    order = order_of(folder)
    with GuardedOwner(Ledger(folder, "load-test")) as owner:
        server = SglangEngine(order.engine).start(order, owner)
        yield server.wait_ready(lambda _: None).url
        server.stop()


@pytest.fixture(scope="module")
def driver() -> Iterator[ProcessDriver]:
    with ProcessDriver() as made:
        yield made


def phase(url: str, folder: Path, **more: object) -> PhaseOrder:
    spec = PhaseSpec(
        **{"input": Lengths(value=64), "output": Lengths(value=16), "concurrency": 4, "requests": 16, "warmup_seconds": 2, **more}
    )
    return PhaseOrder(name="p", phase=spec, url=url, model=MODEL, seed=5, limits=EASY, folder=str(folder), study_folder=str(folder))


@pytest.mark.parametrize("route", ["generate", "completions", "chat"])
def test_every_route_serves_the_exact_tokens(url: str, driver: ProcessDriver, tmp_path: Path, route: str) -> None:
    record = driver.run(phase(url, tmp_path, route=route))
    assert record.invalid_reasons == ()
    assert record.counts.completed == record.counts.sent == 16
    if route != "chat":
        import pyarrow.parquet as pq

        table = pq.read_table(tmp_path / record.artifacts["requests"])
        assert set(table["prompt_tokens"].to_pylist()) == {64}
        assert all(tokens[-1] == 16 for tokens in table["tokens"].to_pylist())
    assert record.metrics["tpot_p50_ms"] > 0
    assert record.telemetry.queued_requests_max is not None


def test_the_fingerprint_of_random_weights_repeats_or_says_it_cannot_tell(url: str, driver: ProcessDriver) -> None:
    order = GuardOrder(url=url, model=MODEL, prompts=2, tokens=8)
    prints = [driver.fingerprint(order) for _ in range(2)]
    assert {print_.state for print_ in prints} <= {"usable", "cannot_tell"}
    assert prints[0].prompts_hash == prints[1].prompts_hash
    assert [len(row) for row in prints[0].logprobs] == [63, 63]
    assert compare(prints[:1], prints).state in ("pass", "cannot_tell")


def test_a_cpu_profile_names_its_operators(url: str, driver: ProcessDriver, tmp_path: Path) -> None:
    profile = driver.profile(phase(url, tmp_path, requests=None), steps=5, gpu=False)
    assert profile.device == "cpu"
    assert 1 <= profile.passes <= 5
    assert profile.by_kind["gemm"] > 0
    assert profile.unnamed_share < 0.2
