"""`make bench-client`: this client, `sglang.bench_serving` and a bare socket reader against one stamping loopback server, side by side.

    python -m tests.bench.client_bench [--short] [--seconds S] [--repeats N] [--out FOLDER] [--without-sglang] [--fresh] [--table]

The engine's interpreter is taken from ENGINE_PYTHON (default .venv-engine/bin/python). Each step is appended to records.jsonl as it
ends and the table is written again from all of them, marked as partial until the last one is there: a run that was cut goes on
where it stopped. A step that fails is a row that says why. No timed asserts."""

import argparse
import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from runner.loadgen.base import ClientBroken
from runner.loadgen.calibrate import NS_PER_MS, Reported, Stamped, echo_server, errors_ms, read_log, reported_by
from runner.loadgen.driver import ProcessDriver
from runner.loadgen.job import Job, LengthRecipe
from runner.loadgen.measures import percentile
from runner.loadgen.processes import worker_environment
from tests.bench.client_records import Records
from tests.bench.client_table import BARE, FLOOR, OURS, SGLANG, write_table

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINE = Path(os.environ.get("ENGINE_PYTHON") or ROOT / ".venv-engine" / "bin" / "python")
TOKENS = 64
# The engine's benchmark needs a tokenizer folder; with ids as prompts any one does.
MAKE_TOKENIZER = """
import json, pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers
out = pathlib.Path(sys.argv[1])
tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(4096)}, unk_token="t0"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.save(str(out / "tokenizer.json"))
(out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t1"}))
(out / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096}))
"""


@dataclass(frozen=True)
class Step:
    """One row of the records: a client at a level (or its start), once."""

    client: str
    level: str
    repeat: int


@dataclass(frozen=True)
class Level:
    """`streams` open at most; `rate` requests a second (None: closed loop); `token_ms` 0: as fast as the server can."""

    name: str
    streams: int
    token_ms: float = 10.0
    rate: float | None = None


@dataclass(frozen=True)
class Result:
    """One client at one level. Errors in ms against the server's stamps; `rate_error` relative, of the sending rate."""

    client: str
    level: str
    requests: int
    chunks: int
    chunks_per_s: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    gap_p50: float
    gap_p99: float
    cpu_s_per_million: float
    lag_p99: float | None
    rate_error: float | None


LEVELS = (
    *(Level(f"closed loop, {count} streams", count) for count in (16, 64, 256)),
    Level("saturation, 256 streams", 256, token_ms=0.0),
    *(Level(f"Poisson, {rate} req/s", 1024, rate=float(rate)) for rate in (50, 200, 500)),
)
SHORT = (LEVELS[1], LEVELS[4])
START_FRESH, START_NEXT = f"{OURS}, a fresh process", f"{OURS}, next phase"
STARTS = (START_FRESH, START_NEXT, SGLANG)
BUSY_S = 0.5
SGLANG_DEADLINE_S = 180
BARE_DEADLINE_S = 120


def requests_for(level: Level, seconds: float) -> int:
    """As many requests for bench_serving as this client makes in `seconds`."""
    if level.rate:
        return round(level.rate * seconds)
    per_request = TOKENS * level.token_ms / 1e3 + 0.02
    rounds = max(2, round(seconds / per_request)) if level.token_ms else 12
    return level.streams * rounds


def result_of(
    client: str,
    level: Level,
    reported: Mapping[str, Reported],
    answers: Mapping[str, Stamped],
    cpu_s: float,
    lags: list[float] | None,
    asked: float | None,
) -> Result:
    """`cpu_s`: seconds of processor time beyond the client's start; `asked`: rate of the schedule, requests a second."""
    ttft, tpot, gaps = errors_ms(reported, answers)
    served = [answer for key, answer in answers.items() if key in reported]
    chunks = sum(len(answer.stamps) for answer in served)
    received = sorted(answer.received for answer in served)
    ends = max((answer.stamps[-1] for answer in served), default=0)
    rate_error = None
    if asked and len(received) > 1:
        rate_error = (len(received) - 1) / ((received[-1] - received[0]) / 1e9) / asked - 1
    return Result(
        client=client,
        level=level.name,
        requests=len(ttft),
        chunks=chunks,
        chunks_per_s=chunks / ((ends - received[0]) / 1e9) if served else 0.0,
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        tpot_p50=percentile(tpot, 50),
        tpot_p99=percentile(tpot, 99),
        gap_p50=percentile(gaps, 50),
        gap_p99=percentile(gaps, 99),
        cpu_s_per_million=cpu_s / chunks * 1e6 if chunks else float("nan"),
        lag_p99=percentile(lags, 99) if lags else None,
        rate_error=rate_error,
    )


def by_key(log: Path) -> dict[str, Stamped]:
    return {answer.key: answer for answer in read_log(log) if len(answer.stamps) == TOKENS}


def run_ours(level: Level, seconds: float, folder: Path) -> Result:
    """This client: the worker's own processor time, reading afterwards included."""
    log = folder / "ours.log"
    with ProcessDriver() as driver:
        with echo_server(level.token_ms, log=log) as url:
            job = Job(
                url=url,
                concurrency=level.streams,
                seconds=seconds,
                rounds=1,
                until="requests" if not level.rate else "seconds",
                requests=requests_for(level, seconds) if not level.rate else 0,
                arrival="poisson" if level.rate else "closed",
                rate=level.rate or 0.0,
                input=LengthRecipe(value=64),
                output=LengthRecipe(value=TOKENS),
            )
            load = driver.drive_split(job, 1)
        reported = reported_by(load.rows, job)
    report = load.reports[0]
    scheduled = sorted(row.scheduled for row in load.rows)
    asked = (len(scheduled) - 1) / ((scheduled[-1] - scheduled[0]) / 1e9) if level.rate else None
    lags = [lag / NS_PER_MS for lag in report["lags_ns"]]
    return result_of(OURS, level, reported, by_key(log), report["cpu_s"] + report["parse_cpu_s"], lags, asked)


def run_bare(level: Level, seconds: float, folder: Path) -> Result:
    log = folder / "bare.log"
    with echo_server(level.token_ms, log=log) as url:
        argv = [sys.executable, "-m", "tests.bench.bare_reader", url, str(level.streams), str(seconds), str(TOKENS)]
        argv += [str(level.rate)] if level.rate else []
        done = subprocess.run(
            argv, capture_output=True, text=True, check=True, cwd=ROOT, env=worker_environment(os.environ), timeout=BARE_DEADLINE_S
        )
    found = json.loads(done.stdout)
    reported = {
        key: Reported(times[0], (times[-1] - times[0]) / (len(times) - 1), [b - a for a, b in pairwise(times)])
        for key, times in found["requests"].items()
        if len(times) > 1
    }
    return result_of(BARE, level, reported, by_key(log), found["cpu_s"], found["lags_ms"], None)


def run_floor(level: Level, seconds: float, folder: Path) -> Result:
    """The event loop alone: only its processor time means something, so nothing is reported."""
    log = folder / "floor.log"
    with echo_server(level.token_ms, log=log) as url:
        argv = [sys.executable, "-m", "tests.bench.uvloop_floor", url, str(level.streams), str(seconds), str(TOKENS)]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=True, cwd=ROOT, env=worker_environment(os.environ), timeout=BARE_DEADLINE_S
        )
    answers = by_key(log)
    nothing = {key: Reported(float("nan"), float("nan"), ()) for key in answers}
    return result_of(FLOOR, level, nothing, answers, json.loads(done.stdout)["cpu_s"], None, None)


def run_sglang(level: Level, seconds: float, folder: Path) -> Result:
    """bench_serving with the same shape. Its processor time is that between its first request after the warm-up and the last chunk."""
    count = requests_for(level, seconds)
    log, out = folder / "sglang.log", folder / "sglang.jsonl"
    with echo_server(level.token_ms, log=log) as url:
        samples = bench_serving(url, count, level, folder / "tokenizer", out)
    found = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])
    reported = {}
    for text, ttft, gaps in zip(found["generated_texts"], found["ttfts"], found["itls"], strict=True):
        if gaps:
            reported[text] = Reported(ttft * 1e3, sum(gaps) / len(gaps) * 1e3, [gap * 1e3 for gap in gaps])
    answers = {f"r{answer.number:07d}": answer for answer in read_log(log) if len(answer.stamps) == TOKENS}
    served = [answer for key, answer in answers.items() if key in reported]
    begin, end = min(answer.received for answer in served), max(answer.stamps[-1] for answer in served)
    cpu = used_until(samples, end) - used_until(samples, begin)
    return result_of(SGLANG, level, reported, answers, cpu, None, level.rate)


def used_until(samples: list[tuple[int, float]], moment: int) -> float:
    """Processor seconds used by `moment` (monotonic ns), between two samples in a straight line."""
    before = max((sample for sample in samples if sample[0] <= moment), default=samples[0])
    after = min((sample for sample in samples if sample[0] > moment), default=samples[-1])
    share = (moment - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return before[1] + share * (after[1] - before[1])


def bench_serving(url: str, count: int, level: Level, tokenizer: Path, out: Path) -> list[tuple[int, float]]:
    """Runs it; gives (monotonic ns, processor seconds so far) every 20 ms. Raises RuntimeError with its last lines, also when it
    is not done in time."""
    out.unlink(missing_ok=True)
    argv = [str(ENGINE), "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url, "--dataset-name", "random-ids"]
    argv += ["--model", str(tokenizer), "--tokenizer", str(tokenizer), "--tokenize-prompt", "--num-prompts", str(count), "--seed", "1"]
    argv += ["--random-input-len", "64", "--random-output-len", str(TOKENS), "--random-range-ratio", "1.0", "--warmup-requests", "1"]
    argv += ["--max-concurrency", str(level.streams), "--request-rate", str(level.rate or "inf"), "--output-file", str(out)]
    argv += ["--output-details", "--disable-tqdm"]
    env = {**worker_environment(os.environ), "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    env.pop("PYTHONPATH", None)
    with open(out.with_suffix(".out"), "w+", encoding="utf-8") as text:
        process = subprocess.Popen(argv, stdout=text, stderr=subprocess.STDOUT, env=env)
        samples: list[tuple[int, float]] = []
        watched = psutil.Process(process.pid)
        deadline = time.monotonic() + SGLANG_DEADLINE_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                break
            with contextlib.suppress(psutil.Error):
                times = watched.cpu_times()
                samples.append((time.monotonic_ns(), times.user + times.system))
            time.sleep(0.02)
        if process.returncode or not out.exists():
            text.seek(0)
            raise RuntimeError(f"bench_serving ended with {process.returncode}: {text.read()[-800:]}")
    return samples


def startup_ours(folder: Path) -> float:
    """Seconds from starting a fresh worker process to its first request's arrival at the server."""
    log = folder / "start.log"
    with echo_server(10.0, log=log) as url:
        began = time.monotonic_ns()
        with ProcessDriver() as driver:
            driver.drive(Job(url=url, until="requests", requests=1, input=LengthRecipe(value=64), output=LengthRecipe(value=4)))
    return (read_log(log)[0].received - began) / 1e9


def phase_start(folder: Path) -> float:
    """The same with the worker up, as between two phases of a study."""
    log = folder / "phase.log"
    with echo_server(10.0, log=log) as url, ProcessDriver() as driver:
        job = Job(url=url, until="requests", requests=1, input=LengthRecipe(value=64), output=LengthRecipe(value=4))
        driver.drive(job)
        began = time.monotonic_ns()
        driver.drive(job)
    return (read_log(log)[-1].received - began) / 1e9


def startup_sglang(folder: Path) -> float:
    """Seconds from its start to its first request, which is a warm-up, at the server."""
    log, out = folder / "start-sglang.log", folder / "start-sglang.jsonl"
    with echo_server(10.0, log=log) as url:
        began = time.monotonic_ns()
        bench_serving(url, 1, Level("start", 1), folder / "tokenizer", out)
    return (read_log(log)[0].received - began) / 1e9


def versions(with_sglang: bool) -> dict[str, str]:
    import httptools
    import uvloop

    code = b"".join(path.read_bytes() for path in sorted((ROOT / "runner" / "loadgen").glob("*.py")))
    found = {
        "this client (hash of its files)": sha256(code).hexdigest()[:12],
        "Python": platform.python_version(),
        "uvloop": uvloop.__version__,
        "httptools": httptools.__version__,
    }
    if with_sglang:
        code = "import sys, importlib.metadata as m; print(sys.version.split()[0], m.version('sglang'), m.version('aiohttp'))"
        done = subprocess.run([str(ENGINE), "-c", code], capture_output=True, text=True, check=True)
        python, sglang, aiohttp = done.stdout.split()[-3:]
        found |= {"sglang": sglang, "its Python": python, "its aiohttp": aiohttp}
    return found


def machine() -> dict[str, str]:
    """What the figures depend on, and what a run that goes on must find again."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": cpu.group(1) if cpu else platform.processor(),
    }


def plan(short: bool, repeats: int, with_sglang: bool) -> list[Step]:
    """Every step in order: repeat by repeat over all levels, so that what a cut run leaves has each of them."""
    steps = []
    for repeat in range(repeats):
        steps += [Step(client, "start", repeat) for client in STARTS if with_sglang or client != SGLANG]
        for level in SHORT if short else LEVELS:
            clients = [BARE, *([FLOOR] if not level.rate else []), OURS, *([SGLANG] if with_sglang else [])]
            steps += [Step(client, level.name, repeat) for client in clients]
    return steps


def take(step: Step, seconds: float, folder: Path) -> dict[str, Any]:
    """Runs one step. Raises what its client raises: OSError, RuntimeError, subprocess errors, ClientBroken, ValueError."""
    if step.level == "start":
        value = {START_FRESH: startup_ours, START_NEXT: phase_start, SGLANG: startup_sglang}[step.client](folder)
        return {"start_s": value}
    level = next(level for level in LEVELS if level.name == step.level)
    run = {BARE: run_bare, FLOOR: run_floor, OURS: run_ours, SGLANG: run_sglang}[step.client]
    return {"result": asdict(run(level, seconds, folder))}


def take_row(step: Step, seconds: float, folder: Path) -> dict[str, Any]:
    """One line of the records: the step, how busy the machine was just before it, and what came of it, a failure too."""
    row: dict[str, Any] = {**asdict(step), "busy_before": round(psutil.cpu_percent(BUSY_S) / 100, 3), "at": time.strftime("%F %T")}
    try:
        return row | take(step, seconds, folder)
    except (OSError, RuntimeError, subprocess.SubprocessError, ClientBroken, ValueError, KeyError, IndexError) as error:
        text = f"{type(error).__name__}: {error}"
        for place, name in ((folder, "$FOLDER"), (ENGINE.parent.parent, "$ENGINE"), (ROOT, "$ROOT")):
            text = text.replace(str(place), name)
        return row | {"failed": text[-600:]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="two levels, 2 s each")
    parser.add_argument("--seconds", type=float, default=None, help="a level; 6 by default")
    parser.add_argument("--repeats", type=int, default=None, help="3 by default")
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "client_limits")
    parser.add_argument("--without-sglang", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="throw away what an earlier run left, instead of going on with it")
    parser.add_argument("--table", action="store_true", help="only write the table again from the records")
    options = parser.parse_args(arguments)
    with_sglang = not options.without_sglang
    if with_sglang and not options.table and not ENGINE.exists():
        raise SystemExit(f"there is no engine environment at {ENGINE}: run `make engine-cpu`, set ENGINE_PYTHON, or give --without-sglang")
    records = Records(options.out / "records.jsonl")
    if options.table:
        write_table(options.out, records.head(), records.rows())
        return
    seconds = options.seconds or (2.0 if options.short else 6.0)
    repeats = options.repeats or (1 if options.short else 3)
    steps = plan(options.short, repeats, with_sglang)
    settings = {"seconds a level": f"{seconds:g}", "repeats": str(repeats), "short": str(options.short), "steps": str(len(steps))}
    head = {"machine": machine(), "versions": versions(with_sglang), "settings": settings}
    left = records.open(head, steps, options.fresh)
    minutes = sum(seconds + (16 if step.client == SGLANG else 2) for step in left) / 60
    print(f"{len(steps) - len(left)} of {len(steps)} steps are there already; the rest takes about {minutes:.0f} min", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="client-bench-") as name:
        folder = Path(name)
        if with_sglang and left:
            (folder / "tokenizer").mkdir()
            subprocess.run([str(ENGINE), "-c", MAKE_TOKENIZER, str(folder / "tokenizer")], check=True, timeout=300)
        for number, step in enumerate(left, 1):
            row = take_row(step, seconds, folder)
            records.append(row)
            write_table(options.out, records.head(), records.rows())
            found = row.get("failed") or row.get("start_s") or round(row["result"]["ttft_p50"], 2)
            print(f"{number}/{len(left)} {step.level}, {step.client}, repeat {step.repeat + 1}: {found}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
