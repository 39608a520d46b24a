"""Phases from warm-up to record, through the real worker process."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from runner.engines.guard import GuardedOwner
from runner.engines.ledger import Ledger
from runner.loadgen.base import ClientBroken, GuardOrder, PhaseOrder
from runner.loadgen.driver import ProcessDriver
from runner.loadgen.processes import Worker, worker_environment
from runner.loadgen.profile import Profile
from runner.records.metrics import BY_NAME
from runner.spec.model import ModelSpec
from runner.spec.protocol import Limits
from runner.spec.workload import Lengths, PhaseSpec, Slo
from tests.loadgen.fake_server import FakeServer, Reply, event, steady

MODEL = ModelSpec(name="m", hidden_size=8, num_layers=1, vocab_size=500)
# This machine may be busy: limits of the client are tested on their own.
EASY = Limits(dispatch_lag_p99_ms=1000, loop_stall_ms=5000, client_cpu_share=2, rate_error=0.2, littles_law_residual=1)


@pytest.fixture(scope="module")
def driver() -> Iterator[ProcessDriver]:
    made = ProcessDriver()
    try:
        yield made
    finally:
        made.close()


def order(server: FakeServer, folder: Path, **more: object) -> PhaseOrder:
    fields: dict[str, object] = {"input": Lengths(value=24), "output": Lengths(value=6), "seconds": 0.4, "warmup_seconds": 0.3}
    extra = {key: more.pop(key) for key in ("name", "seed", "block", "stream", "scale", "warmup", "limits", "scrape") if key in more}
    return PhaseOrder(
        **{"name": "p", "seed": 3, "limits": EASY, "scrape": False, **extra},
        phase=PhaseSpec(**{**fields, **more}),
        url=server.url,
        model=MODEL,
        folder=str(folder / "launch"),
        study_folder=str(folder),
    )


def test_a_phase_becomes_a_record(driver: ProcessDriver, tmp_path: Path) -> None:
    with FakeServer() as server:
        record = driver.run(order(server, tmp_path, concurrency=2, slo=Slo(ttft_ms=5000), name="decode c2"))
        bodies, paths = server.bodies, server.paths
    assert (record.valid, record.invalid_reasons) == (True, ())
    assert record.counts.completed == record.counts.sent >= 6
    assert set(record.metrics) == set(BY_NAME)
    assert record.cached_share == 0.0
    assert (record.concurrency, record.dataset) == (2, "random_ids")
    assert 0.3 < record.window_s < 5
    assert 0 < record.warmup_s < 5
    assert 0 < record.client.first_request_s < 10
    # Warm-up first, then one flush, then the window; no prompt twice.
    flush = paths.index("/flush_cache")
    assert paths.count("/flush_cache") == 1
    assert flush >= 2
    assert len(paths) - 1 - flush == record.counts.sent
    prompts = [tuple(body["input_ids"]) for body in bodies]
    assert len(set(prompts)) == len(prompts)
    table = pq.read_table(tmp_path / record.artifacts["requests"])
    assert table.num_rows == record.counts.sent
    row = table.slice(0, 1).to_pylist()[0]
    assert len(row["chunk_s"]) == len(row["tokens"]) == 6
    assert row["scheduled_s"] <= row["sent_s"] <= row["chunk_s"][0] <= row["chunk_s"][-1] <= row["ended_s"]
    meta = table.schema.metadata
    assert float(meta[b"window_end_s"]) - float(meta[b"window_start_s"]) == pytest.approx(record.window_s)
    assert abs(float(meta[b"origin_unix_s"]) + 1 - record.started_at) < 0.01


def test_arms_of_a_block_get_the_same_prompts_and_other_blocks_others(driver: ProcessDriver, tmp_path: Path) -> None:
    sent = []
    for block in (0, 0, 1):
        with FakeServer() as server:
            driver.run(order(server, tmp_path, warmup=False, requests=4, block=block))
            sent.append([tuple(body["input_ids"]) for body in server.bodies])
    assert sent[0] == sent[1]
    assert not set(sent[0]) & set(sent[2])


def test_at_least_one_round_however_short_the_window(driver: ProcessDriver, tmp_path: Path) -> None:
    with FakeServer(steady(token_s=0.05)) as server:
        record = driver.run(order(server, tmp_path, concurrency=4, scale=0.05, warmup=False))
    assert record.counts.sent == record.counts.completed == 4
    assert record.valid
    assert record.metrics["output_tok_s"] == pytest.approx(4 * 6 / 0.26, rel=0.3)
    assert record.steadiness == "unproven"


def test_an_open_loop_phase(driver: ProcessDriver, tmp_path: Path) -> None:
    with FakeServer() as server:
        record = driver.run(order(server, tmp_path, arrival="poisson", rate=100.0, concurrency=64, seconds=0.6))
    assert record.counts.completed == 60
    assert record.client.asked_rate == pytest.approx(record.client.achieved_rate, rel=0.1)
    assert (record.concurrency, record.rate) == (None, 100.0)
    assert record.metrics["ttft_scheduled_p50_ms"] >= record.metrics["ttft_p50_ms"]


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_openai_routes(driver: ProcessDriver, tmp_path: Path, route: str) -> None:
    async def openai(reply: Reply) -> None:
        reply.head()
        for count in range(1, reply.asked + 1):
            content = {"delta": {"content": "a"}} if route == "chat" else {"text": "a"}
            usage = {"completion_tokens": count, "prompt_tokens": 24}
            finish = "length" if count == reply.asked else None
            await reply.chunk(
                b"data: " + json.dumps({"choices": [{**content, "finish_reason": finish}], "usage": usage}).encode() + b"\n\n"
            )
            await asyncio.sleep(0.002)
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.end()

    with FakeServer(openai) as server:
        record = driver.run(order(server, tmp_path, route=route, requests=4, warmup=False))
        assert {path for path in server.paths if path.startswith("/v1")} == {f"/v1/{'chat/' if route == 'chat' else ''}completions"}
    assert (record.valid, record.counts.completed) == (True, 4)


def test_cached_prompts_make_a_phase_invalid_unless_asked_for(driver: ProcessDriver, tmp_path: Path) -> None:
    async def cached(reply: Reply) -> None:
        reply.head()
        for count in range(1, reply.asked + 1):
            await reply.chunk(event(count, 24, count == reply.asked, cached=12))
        await reply.chunk(b"data: [DONE]\n\n")
        await reply.end()

    with FakeServer(cached) as server:
        record = driver.run(order(server, tmp_path, requests=4, warmup=False))
        shared = driver.run(order(server, tmp_path, requests=4, warmup=False, shared_prefix=12))
    assert record.cached_share == 0.5
    assert not record.valid
    assert "50.0% of the prompt tokens came from the cache" in record.invalid_reasons[0]
    assert shared.valid


def test_failures_beyond_the_limit_make_a_phase_invalid_and_are_counted(driver: ProcessDriver, tmp_path: Path) -> None:
    good = steady()

    async def some_fail(reply: Reply) -> None:
        if reply.number % 4 == 1:
            await reply.plain('{"error": {"message": "no room"}}', "503 Service Unavailable")
        elif reply.number % 4 == 2:
            reply.head()
            await reply.chunk(event(3, 24, finish_reason={"type": "stop"}) + b"data: [DONE]\n\n")
            await reply.end()
        else:
            await good(reply)

    with FakeServer(some_fail) as server:
        record = driver.run(order(server, tmp_path, requests=8, warmup=False))
    counts = record.counts
    assert (counts.sent, counts.failed, counts.stopped_early, counts.completed) == (8, 2, 2, 4)
    assert not record.valid
    assert "2 failed, 2 stopped early of 8 requests" in record.invalid_reasons[0]
    assert "no room" in record.invalid_reasons[0]


def test_a_dead_server_is_a_record_not_an_exception(driver: ProcessDriver, tmp_path: Path) -> None:
    with FakeServer() as server:
        pass
    began = time.monotonic()
    record = driver.run(order(server, tmp_path, concurrency=2))
    assert time.monotonic() - began < 10
    assert not record.valid
    assert "requests failed (could not connect" in record.invalid_reasons[0]


def test_a_server_that_dies_in_the_window_is_a_record(driver: ProcessDriver, tmp_path: Path) -> None:
    good = steady()
    with FakeServer() as server:

        async def dies(reply: Reply) -> None:
            if reply.number == 5:
                asyncio.get_running_loop().stop()
            await good(reply)

        server.script = dies
        record = driver.run(order(server, tmp_path, concurrency=2, warmup=False, seconds=30.0))
    assert not record.valid
    assert record.counts.failed > 0
    assert record.counts.completed >= 3
    assert "the server stopped serving" in record.invalid_reasons[0]


def test_a_refused_flush_is_a_record(driver: ProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.loadgen import driver as module
    from runner.loadgen.control import flush

    monkeypatch.setattr(module, "flush", lambda url: flush(url, wait_s=0.1))
    with FakeServer() as server:
        server.flush_status = "400 Bad Request"
        record = driver.run(order(server, tmp_path))
    assert not record.valid
    assert "flush refused: HTTP 400" in record.invalid_reasons[0]


def test_the_client_limits_are_applied(driver: ProcessDriver, tmp_path: Path) -> None:
    strict = Limits(dispatch_lag_p99_ms=-1.0, loop_stall_ms=-1.0, client_cpu_share=-1.0)
    with FakeServer() as server:
        record = driver.run(order(server, tmp_path, limits=strict, requests=4, warmup=False))
    assert [reason.split(":")[0] for reason in record.invalid_reasons] == ["client"] * 3


def test_telemetry_is_scraped_into_an_artifact(driver: ProcessDriver, tmp_path: Path) -> None:
    with FakeServer(steady(token_s=0.02)) as server:
        record = driver.run(order(server, tmp_path, scrape=True, requests=4, warmup=False))
    lines = [json.loads(line) for line in (tmp_path / record.artifacts["telemetry"]).read_text().splitlines()]
    assert lines[0]["server"]["num_queue_reqs"] == 1.0
    assert record.telemetry.queued_requests_max == 1.0
    assert record.telemetry.running_requests_mean is not None


def test_a_server_that_does_not_settle_is_cold(driver: ProcessDriver, tmp_path: Path) -> None:
    """Every request takes half as long again as the one before: by requests, not by the clock, so that a busy machine changes nothing."""

    async def slower_and_slower(reply: Reply) -> None:
        await steady(token_s=min(0.1, 0.004 * 1.6**reply.number))(reply)

    with FakeServer(slower_and_slower) as server:
        cold = driver.run(order(server, tmp_path, concurrency=1, seconds=0.1, warmup_seconds=1.0))
    assert cold.steadiness == "cold"


def test_a_worker_may_open_as_many_files_as_the_system_lets_it() -> None:
    """Started under the usual soft limit, it must still hold a thousand streams."""
    code = "import resource, runner.loadgen.worker as w; w.raise_file_limit(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=worker_environment(os.environ),
        timeout=60,
    )
    assert done.stdout.split() == [str(hard), str(hard)]


def test_many_streams_are_split_over_workers(driver: ProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.loadgen import driver as module

    monkeypatch.setattr(module, "STREAMS_PER_WORKER", 3)
    with FakeServer(steady(token_s=0.02)) as server:
        record = driver.run(order(server, tmp_path, concurrency=7, requests=14, warmup=False))
        prompts = [tuple(body["input_ids"]) for body in server.bodies]
        assert server.connections == 7 + 1  # and the flush
    assert len(set(prompts)) == 14
    assert record.counts.completed == 14
    rows = pq.read_table(tmp_path / record.artifacts["requests"]).to_pylist()
    assert {row["worker"] for row in rows} == {0, 1, 2}
    first = sorted(row["sent_s"] for row in rows)[:7]
    assert first[-1] - first[0] < 0.15, "workers start together"


def test_the_first_request_leaves_within_three_tenths_of_a_second(tmp_path: Path) -> None:
    """Also from a driver that was just made: the worker's start counts."""
    best = 9.0
    for _ in range(3):
        with FakeServer() as server, ProcessDriver() as fresh:
            fresh.run(order(server, tmp_path, requests=1, warmup=False))  # warm imports of the judging side
            record = fresh.run(order(server, tmp_path, requests=1, warmup=False))
            best = min(best, record.client.first_request_s)
    assert best < 0.3


def test_the_worker_imports_nothing_heavy() -> None:
    code = (
        "import sys, runner.loadgen.worker; print([n for n in ('numpy', 'pydantic', 'requests', 'pyarrow', 'scipy') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=worker_environment(os.environ))
    assert out.stdout.strip() == "[]"


def test_a_dead_worker_is_client_broken_and_the_next_phase_works(tmp_path: Path) -> None:
    with FakeServer(steady(token_s=0.05)) as server, ProcessDriver() as broken:
        pid = broken._workers[0].pid

        async def kill(reply: Reply) -> None:
            os.kill(pid, signal.SIGKILL)

        good, server.script = server.script, kill
        with pytest.raises(ClientBroken, match="died"):
            broken.run(order(server, tmp_path, warmup=False))
        server.script = good
        assert broken.run(order(server, tmp_path, requests=2, warmup=False)).counts.completed == 2


def test_a_worker_reports_what_it_cannot_do(tmp_path: Path, driver: ProcessDriver) -> None:
    with FakeServer() as server, pytest.raises(ClientBroken, match="dataset_path"):
        driver.run(order(server, tmp_path, dataset="text", warmup=False))


def test_a_worker_ends_with_its_driver() -> None:
    code = "from runner.loadgen.processes import Worker; import os, time; w = Worker(0); print(w.pid, flush=True); os._exit(0)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=worker_environment(os.environ))
    pid = int(out.stdout)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its driver")


def test_an_owner_may_start_the_worker(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def spawn(argv: list[str], env: dict[str, str], log: Path, cwd: Path | None = None) -> "subprocess.Popen[bytes]":
        with open(log, "ab") as out:
            started.append(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd))
        return started[-1]

    worker = Worker(4, spawn)
    try:
        worker.ask({"do": "ping"})
        assert worker.answer(10)["pid"] == started[0].pid
    finally:
        worker.close()
        assert started[0].wait(5) is not None


def test_a_worker_that_never_comes_is_client_broken() -> None:
    def spawn(argv: list[str], env: dict[str, str], log: Path, cwd: Path | None = None) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    with pytest.raises(ClientBroken, match="did not start"):
        Worker(0, spawn)


def test_the_fingerprint(driver: ProcessDriver) -> None:
    def answer(value: float | None, tokens: int) -> object:
        async def script(reply: Reply) -> None:
            ids = reply.body["input_ids"]
            assert (reply.body["return_logprob"], reply.body["logprob_start_len"], reply.body["stream"]) == (True, 0, False)
            rows = [[None, ids[0], None], *([value if value is None else value - i / 100, t, None] for i, t in enumerate(ids[1:]))]
            meta = {"input_token_logprobs": rows, "finish_reason": {"type": "length"}}
            await reply.plain(json.dumps({"output_ids": list(range(tokens)), "meta_info": meta}))

        return script

    guard = {"model": MODEL, "prompts": 2, "tokens": 4}
    with FakeServer(answer(-1.0, 4)) as server:  # type: ignore[arg-type]
        good = driver.fingerprint(GuardOrder(url=server.url, **guard))
        again = driver.fingerprint(GuardOrder(url=server.url, **guard))
        server.script = answer(None, 4)  # type: ignore[assignment]
        nan = driver.fingerprint(GuardOrder(url=server.url, **guard))
        server.script = answer(-1.0, 3)  # type: ignore[assignment]
        short = driver.fingerprint(GuardOrder(url=server.url, **guard))
    assert good == again
    assert (good.state, len(good.logprobs), len(good.logprobs[0]), good.tokens[0]) == ("usable", 2, 63, (0, 1, 2, 3))
    assert (nan.state, short.state) == ("nan", "wrong_length")
    gone = driver.fingerprint(GuardOrder(url=server.url, **guard))
    assert gone.state == "not_taken"
    assert driver.fingerprint(GuardOrder(url=server.url, model=MODEL, prompts=0)).state == "not_taken"


def test_a_profile_is_taken_under_load(driver: ProcessDriver, tmp_path: Path) -> None:
    seen: dict[str, object] = {}
    good = steady(token_s=0.03)
    with FakeServer() as server:

        async def profiled(reply: Reply) -> None:
            if reply.path == "/start_profile":
                seen.update(reply.body, running=server.running)
                kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 0, "dur": 4000}
                Path(str(reply.body["output_dir"]), "1-TP-0.trace.json").write_text(json.dumps({"traceEvents": [kernel]}))
                await reply.plain("Start profiling.")
            else:
                await good(reply)

        server.script = profiled
        profile = driver.profile(order(server, tmp_path, concurrency=3, seconds=0.1), steps=4)
    assert (seen["num_steps"], seen["activities"]) == (4, ["CPU", "GPU"])
    assert int(str(seen["running"])) > 1, "the load must be on"
    assert profile.by_kind == {"all_reduce": 1.0}
    assert Profile.model_validate(json.loads((tmp_path / "launch" / "p.profile.json").read_text())) == profile


def test_ports_are_not_leaked(driver: ProcessDriver, tmp_path: Path) -> None:
    with FakeServer() as server:
        driver.run(order(server, tmp_path, concurrency=4, requests=8, warmup=False))
        with socket.create_connection(("127.0.0.1", server.port)):
            time.sleep(0.1)
            count = sum(f":{server.port:04X} 01" in line for line in Path("/proc/net/tcp").read_text().splitlines())
        assert count <= 2


def test_a_long_folder_for_temporary_files_does_not_stop_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path holds 108 bytes; a job scheduler's TMPDIR may be longer."""
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with GuardedOwner(Ledger(tmp_path, "long")) as owner, ProcessDriver(owner.spawn) as driver, FakeServer() as server:
        assert driver.run(order(server, tmp_path, requests=2, warmup=False)).counts.completed == 2
