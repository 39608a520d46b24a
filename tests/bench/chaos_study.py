"""One tiny study of the simulated engine as a process of its own, and how it is judged: by a walk of /proc and by its files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.engines import process
from runner.engines.ledger import FOLDER

REPOSITORY = Path(__file__).resolve().parents[2]
ARM = "mscclpp=on"
EXPERIMENT = """\
# @package _global_
defaults:
  - override /engine: simulated
  - override /protocol: quick
grid: {mscclpp: ["off", "on"]}
baseline: {mscclpp: "off"}
phases: [decode_c1]
engine:
  simulation: {load_s: 0.05, time_scale: 0.15}
  deadlines: {bind_s: 5, distributed_s: 2, weights_s: 2, graphs_s: 2, warmup_s: 2, silent_s: 3, drain_s: 0.5, terminate_s: 1}
workload:
  phases: {decode_c1: {requests: 8, input: {value: 32}, output: {value: 16}, seconds: 0.3, warmup_seconds: 0.1}}
protocol:
  confirm: false
  screen: false
  phase_scale: 1.0
  fingerprint_prompts: 0
  limits: {dispatch_lag_p99_ms: 10000, loop_stall_ms: 10000, client_cpu_share: 100, littles_law_residual: 10}
"""
"""Two arms, three blocks, phases of a tenth of a second. The limits on the load client are off: a busy machine must not turn an
arm INVALID, since two studies are compared arm by arm."""

GONE_S = 10.0
GONE_RAYLET_S = 20.0
DRIVER_S = 120.0


@dataclass(frozen=True)
class Result:
    """What a study came to: status by arm, and how often each measured (arm, block) was counted in the judgement."""

    arms: dict[str, str]
    counted: dict[str, int]


@dataclass
class ChaosStudy:
    """A study in `folder`. Everything it starts carries `folder` as TMPDIR in its environment, which is how it is found again."""

    folder: Path
    words: list[str] = field(default_factory=list)
    ray: bool = False
    driver: "subprocess.Popen[bytes] | None" = None
    starts: int = 0

    def __post_init__(self) -> None:
        (self.folder / "conf" / "experiment").mkdir(parents=True)
        (self.folder / "conf" / "experiment" / "tiny.yaml").write_text(EXPERIMENT)
        self.temporary.mkdir()

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def root(self) -> Path:
        return self.folder / "mlruns"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def paths(self) -> Path:
        return self.root / "studies" / "study"

    @property
    def output(self) -> str:
        path = self.folder / "output.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def command(self, *words: str) -> list[str]:
        chosen = ["+experiment=tiny", "study.name=study", f"execution.executor={'ray' if self.ray else 'inline'}"]
        chosen += [f"execution.lock_dir={self.lock}", f"tracking.root={self.root}"]
        if not any(word.startswith("tracking.enabled") for word in self.words):
            chosen.append("tracking.enabled=false")
        return [sys.executable, "-m", "runner", "--config-dir", str(self.folder / "conf"), *chosen, *self.words, *words]

    def start(self, *words: str, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        """Starts a driver in a session of its own."""
        self.starts += 1
        env = {**os.environ, "TMPDIR": str(self.temporary), "CUDA_VISIBLE_DEVICES": ""}
        with open(self.folder / "output.txt", "ab") as output:
            output.write(f"--- start {self.starts}\n".encode())
            output.flush()
            self.driver = subprocess.Popen(
                [*prefix, *self.command(*words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=REPOSITORY,
                start_new_session=True,
            )
        return self.driver

    def wait(self, timeout: float = DRIVER_S) -> int | None:
        """The driver's exit code; None when it had to be killed for hanging."""
        assert self.driver is not None
        try:
            return self.driver.wait(timeout)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()
            return None

    # --- processes -------------------------------------------------------------------------------------------------
    def processes(self) -> list[process.Seen]:
        """Every live process of this study but the driver itself."""
        mark = str(self.temporary).encode()
        mine: list[process.Seen] = []
        for seen in process.everything():
            if not seen.live or (self.driver is not None and seen.pid == self.driver.pid):
                continue
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{seen.pid}/environ").read_bytes():
                    mine.append(seen)
        return mine

    def find(self, role: str) -> list[process.Seen]:
        """Processes of one role: server, scheduler, worker, guard, raylet, actor, tracking."""
        return [seen for seen in self.processes() if role_of(seen) == role]

    def kill(self, role: str, timeout: float = 15.0) -> bool:
        """kill -9 to one process of the role, waiting until there is one. False when none came while the driver lived."""
        assert self.driver is not None
        if role == "driver":
            if self.driver.poll() is None:
                self.driver.kill()
            return True
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.driver.poll() is None:
            for seen in self.find(role)[:1]:
                if process.send(seen.pid, seen.start, signal.SIGKILL):
                    return True
            time.sleep(0.01)
        return False

    def left_after(self, seconds: float) -> tuple[list[str], float]:
        """Command lines of processes that outlive `seconds`, and how long it took until the last was gone."""
        began = time.monotonic()
        while True:
            left = self.processes()
            took = time.monotonic() - began
            if not left or took > seconds:
                return [f"{seen.pid} {process.command_line(seen.pid)[:100] or seen.name}" for seen in left], took
            time.sleep(0.05)

    def end(self) -> None:
        """Ends whatever is left, by pid and start time."""
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()
        deadline = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < deadline:
            process.send_all(left, signal.SIGKILL)
            time.sleep(0.1)

    # --- records ---------------------------------------------------------------------------------------------------
    def entries(self) -> list[dict[str, Any]]:
        """The journal, read strictly: every line whole. Raises ValueError on a corrupt one."""
        data = (self.paths / "journal.jsonl").read_bytes()
        if not data.endswith(b"\n"):
            raise ValueError("the journal ends in a torn line")
        entries = [json.loads(line) for line in data.splitlines()]
        if [entry["seq"] for entry in entries] != list(range(len(entries))):
            raise ValueError("the journal's numbers are not consecutive")
        return entries

    def finished(self) -> list[str]:
        """Launches that were finished, in order, with repeats."""
        return [entry["launch"]["launch"] for entry in self.entries() if entry["kind"] == "launch_finished"]

    def result(self) -> Result:
        decision = json.loads((self.paths / "decision.json").read_text())
        arms = {arm["name"]: arm["status"] for arm in decision["arms"]}
        last = {e["launch"]["launch"]: e["launch"] for e in self.entries() if e["kind"] == "launch_finished"}
        counted = Counter(launch["arm"] for launch in last.values() if launch["outcome"] == "ok" and launch["purpose"] == "measure")
        return Result(arms, dict(counted))

    def problems(self, undisturbed: Result) -> list[str]:
        """What is wrong with the finished study, beside `undisturbed`; empty when nothing is."""
        wrong: list[str] = []
        try:
            result, finished = self.result(), self.finished()
        except (OSError, ValueError, KeyError) as error:
            return [f"records: {error}"]
        if result.arms != undisturbed.arms:
            wrong.append(f"arms {result.arms}, undisturbed {undisturbed.arms}")
        if result.counted != undisturbed.counted:
            wrong.append(f"launches {result.counted}, undisturbed {undisturbed.counted}")
        wrong += [f"{launch} was finished {count} times" for launch, count in Counter(finished).items() if count > 1]
        for path in self.root.rglob("*.json"):
            try:
                json.loads(path.read_text())
            except ValueError:
                wrong.append(f"{path.name} is corrupt")
        ledgers = list((self.lock / FOLDER).glob("*.jsonl"))
        if any(line for path in ledgers for line in _living(path)):
            wrong.append("the ledger names a live process")
        return wrong


def _living(path: Path) -> list[int]:
    living = []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line).get("entry")
            if entry and process.is_live(entry["pid"], entry["start"]):
                living.append(entry["pid"])
    return living


def role_of(seen: process.Seen) -> str:
    """server, scheduler, worker, guard, raylet, actor, tracking, or other."""
    line = process.command_line(seen.pid)
    if seen.name.startswith("sglang::sched"):
        return "scheduler"
    if seen.name.startswith("sglang::"):
        return "other"
    if "-m runner.engines.simulated" in line:
        return "server"
    if "-m runner.loadgen.worker" in line:
        return "worker"
    if "guardian.py" in line:
        return "guard"
    if "-m runner.tracking.process" in line:
        return "tracking"
    if seen.name == "raylet":
        return "raylet"
    if line.startswith("ray::NodeActor"):
        return "actor"
    return "other"
