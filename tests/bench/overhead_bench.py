"""`make bench-overhead`: what the runner adds to a launch, by stage, beside loops of a script. SIMULATED engine without load time.

The loops do what a script would: start the same server, poll /health every 50 ms, send the same number of requests, SIGTERM. One sends
them itself; the other calls `sglang.bench_serving` of the interpreter in ENGINE_PYTHON (or engine=PATH), as one does by hand.
`python -m tests.bench.overhead_bench [launches=8] [engine=PATH]`"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import requests

from runner.engines import ports
from runner.execution.inline import InlineExecutor
from runner.spec.engine import EngineSpec, Simulation
from tests.bench.client_bench import ENGINE, MAKE_TOKENIZER
from tests.execution.launching import launch_job, node_order

OUTPUT = Path(__file__).parent / "output" / "overhead.md"
SPEC = EngineSpec(kind="simulated", version="0.5.9", simulation=Simulation(load_s=0.0, time_scale=0.02))
REQUESTS = 4


def runner_launches(folder: Path, count: int) -> list[dict[str, float]]:
    """Seconds by stage of each launch, from the records; `gap`: one server gone to the next process started."""
    order = node_order(folder / "lock").model_copy(update={"engine": SPEC})
    executor = InlineExecutor()
    rows = []
    try:
        (node,) = executor.open(order, None)
        last_end: float | None = None
        for number in range(count):
            job = launch_job(folder / "study", f"b{number:02d}-p00-baseline")
            job = job.model_copy(update={"order": job.order.model_copy(update={"engine": SPEC})})
            asked = time.monotonic()
            stages: dict[str, float] = {}
            record = None
            for event in node.launch(job):
                stages.setdefault(event.stage or event.kind, time.monotonic())
                record = event.record or record
            assert record is not None and record.outcome == "ok", record
            ended = time.monotonic()
            took, measured = record.stages, record.phases[0]
            start = sum(took[f"start_{name}"] for name in ("bind", "distributed", "weights", "kv", "graphs", "warmup"))
            row = {
                "wall": ended - asked,
                "engine's own start": start,
                "ready line to ready": took["start_ready"] - start,
                "describe": took["describe"],
                "phase asked to first request": measured.client.first_request_s or float("nan"),
                "phase": took["phases"],
                "of it: load": measured.window_s,
                "evidence": took["evidence"],
                "stop": took["stop"],
            }
            if last_end is not None:
                row["stopped to next start asked"] = stages["start"] - last_end
            last_end = ended
            rows.append(row)
    finally:
        executor.close()
    return rows


def own_requests(url: str) -> None:
    """The same requests, one after the other."""
    with requests.Session() as session:
        for _ in range(REQUESTS):
            body = {"input_ids": list(range(10, 42)), "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
            session.post(f"{url}/generate", json=body, timeout=30).raise_for_status()


def by_bench_serving(engine: Path, tokenizer: Path) -> Callable[[str], None]:
    """The same requests by `sglang.bench_serving`, a new process each time."""

    def send(url: str) -> None:
        argv = [str(engine), "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url, "--dataset-name", "random-ids"]
        argv += ["--model", str(tokenizer), "--tokenizer", str(tokenizer), "--tokenize-prompt", "--num-prompts", str(REQUESTS)]
        argv += ["--random-input-len", "32", "--random-output-len", "8", "--random-range-ratio", "1.0", "--max-concurrency", "1"]
        argv += ["--warmup-requests", "0", "--disable-tqdm", "--output-file", str(tokenizer / "out.jsonl")]
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
        env.pop("PYTHONPATH", None)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"bench_serving ended with {done.returncode}: {done.stderr[-800:]}")

    return send


def loop_launches(folder: Path, count: int, send: Callable[[str], None]) -> list[dict[str, float]]:
    """The script's way, without records, ownership, evidence or telemetry."""
    rows = []
    for number in range(count):
        home = folder / f"loop-{number}"
        home.mkdir(parents=True)
        order = launch_job(home, "loop").order.model_copy(update={"engine": SPEC})
        (home / "order.json").write_text(json.dumps(order.model_dump(mode="json", by_alias=True)))
        port = ports.pick_ports(SPEC.port_range)[0]
        began = time.monotonic()
        with open(home / "server.log", "ab") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "runner.engines.simulated", "--order", str(home / "order.json"), "--port", str(port)],
                stdout=log,
                stderr=log,
                env=dict(os.environ),
            )
        try:
            with requests.Session() as session:
                while True:
                    try:
                        if session.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                            break
                    except requests.ConnectionError:
                        pass
                    time.sleep(0.05)
                ready = time.monotonic()
                send(f"http://127.0.0.1:{port}")
                loaded = time.monotonic()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        rows.append({"wall": time.monotonic() - began, "start": ready - began, "load": loaded - ready, "stop": time.monotonic() - loaded})
    return rows


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: statistics.median(row[name] for row in rows if name in row) for name in names}


def main() -> int:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    count = int(given.get("launches", "8"))
    engine = Path(given.get("engine") or ENGINE)
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        ours, theirs = medians(runner_launches(folder, count)), medians(loop_launches(folder / "own", count, own_requests))
        bench: dict[str, float] = {}
        if shutil.which(str(engine)):
            (folder / "tokenizer").mkdir()
            subprocess.run([str(engine), "-c", MAKE_TOKENIZER, str(folder / "tokenizer")], check=True)
            bench = medians(loop_launches(folder / "bench", max(3, count // 2), by_bench_serving(engine, folder / "tokenizer")))
    load = sum(os.getloadavg()[:1])
    lines = [
        f"SIMULATED engine, no load time, {count} launches each, medians in s (machine load {load:.1f}).",
        "",
        "| runner | s |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value:.3f} |" for name, value in ours.items()]
    added = ours["wall"] - ours["engine's own start"] - ours["of it: load"]
    lines += [f"| **added: wall less the engine's own start and the load** | {added:.3f} |"]
    lines += ["", "| loop of launch, poll /health, requests, kill | s |", "|---|---|"]
    lines += [f"| {name} | {value:.3f} |" for name, value in theirs.items()]
    lines += ["", "| loop of launch, poll /health, sglang.bench_serving, kill | s |", "|---|---|"]
    lines += [f"| {name} | {value:.3f} |" for name, value in bench.items()] or [f"| not run: no interpreter at {engine} | |"]
    text = "\n".join(lines) + "\n"
    print(text)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
