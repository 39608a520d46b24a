"""What may happen to a study: each event disturbs a running driver at an instant that a seed chooses."""

import contextlib
import http.server
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.chaos_study import GONE_RAYLET_S, GONE_S, ChaosStudy


@dataclass
class Verdict:
    """How one study fared. `code`: the driver's last exit code, `first_code` the disturbed driver's."""

    number: int
    event: str
    ray: bool = False
    code: int | None = None
    first_code: int | None = None
    resumes: int = 0
    gone_s: float = 0.0
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        state = "ok" if not self.problems else "WRONG " + "; ".join(self.problems)
        return (
            f"{self.number:3d} {self.event}{' (ray)' if self.ray else ''}: exit {self.first_code}, {self.resumes} resumes, "
            f"gone after {self.gone_s:.1f} s, {self.seconds:.0f} s: {state}"
        )


Disturb = Callable[[ChaosStudy, random.Random, float, Verdict], None]
Around = Callable[[ChaosStudy, Verdict], "contextlib.AbstractContextManager[None]"]


@contextlib.contextmanager
def nothing(study: ChaosStudy, verdict: Verdict) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Event:
    """`around` holds while the disturbed driver lives; resumes come after it."""

    name: str
    disturb: Disturb
    words: tuple[str, ...] = ()
    ray: bool = False
    weight: float = 1.0
    gone_s: float = GONE_S
    around: Around = nothing


def sleep_while_alive(study: ChaosStudy, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and study.driver is not None and study.driver.poll() is None:
        time.sleep(0.02)


def ended(study: ChaosStudy, verdict: Verdict) -> None:
    verdict.code = verdict.first_code = study.wait()
    if verdict.code is None:
        verdict.problems.append("the driver hung and was killed")


def kills(role: str) -> Disturb:
    """kill -9 to a process of the role."""

    def disturb(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
        study.start()
        sleep_while_alive(study, at)
        study.kill(role)
        ended(study, verdict)

    return disturb


def signals(*numbers: int, gap_s: float = 0.2, code: int | None = None) -> Disturb:
    """Signals to the driver. `code` is demanded when the driver was still running."""

    def disturb(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
        driver = study.start()
        deadline = time.monotonic() + 60
        while not (study.paths / "journal.jsonl").exists() and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)  # before, nothing is there yet that could be kept or freed
        sleep_while_alive(study, at / 2)
        alive = driver.poll() is None
        settled = (study.paths / "decision.json").exists()
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(driver.pid, number)
            time.sleep(gap_s)
        ended(study, verdict)
        if alive and not settled and code is not None and verdict.code not in (code, 0):
            verdict.problems.append(f"exit code {verdict.code}, not {code}")

    return disturb


def runs(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    """The environment is the disturbance: the driver runs as far as it comes."""
    study.start()
    ended(study, verdict)


def runs_and_dies(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    """A fault of the engine, and kill -9 of the driver somewhere in it."""
    kills("driver")(study, rng, at, verdict)


def must_finish(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    runs(study, rng, at, verdict)
    if verdict.code not in (0, 3):
        verdict.problems.append(f"this must not stop a study, exit code {verdict.code}")


def two_at_once(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    """A second driver on the same study, another study on the same node: both are refused with 75 and disturb nothing."""
    driver = study.start()
    deadline = time.monotonic() + 15
    while not any(study.lock.glob("node.lock")) and time.monotonic() < deadline:
        time.sleep(0.02)
    env = {**os.environ, "TMPDIR": str(study.temporary), "CUDA_VISIBLE_DEVICES": ""}
    words = study.command()
    other = ["study.name=other" if word == "study.name=study" else word for word in words]
    for name, command in (("the second driver", words), ("another study", other)):
        second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        if driver.poll() is None and second.returncode != 75:
            verdict.problems.append(f"{name} ended with {second.returncode}: {second.stderr[-200:]}")
    ended(study, verdict)


def port_taken(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    """Somebody else binds the port that a server was given, between the check and the server's own bind."""
    study.start()
    taken: list[socket.socket] = []
    deadline = time.monotonic() + 15
    try:
        while not taken and time.monotonic() < deadline and study.driver is not None and study.driver.poll() is None:
            for seen in study.find("server"):
                words = Path(f"/proc/{seen.pid}/cmdline").read_bytes().split(b"\0")
                listener = socket.socket()
                try:
                    listener.bind(("127.0.0.1", int(words[words.index(b"--port") + 1])))
                    listener.listen()
                except (OSError, ValueError):
                    listener.close()
                    continue
                taken.append(listener)
                break
        ended(study, verdict)
    finally:
        for listener in taken:
            listener.close()
    if verdict.code not in (0, 3):
        verdict.problems.append(f"a port race must not stop a study, exit code {verdict.code}")


# --- surroundings -------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def full_disk(study: ChaosStudy, verdict: Verdict) -> Iterator[None]:
    """mlruns on a small mount of its own that another program fills while the study runs."""
    study.root.mkdir()
    size = 400 * 1024 * 1024
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(study.root)], check=False, capture_output=True)
    if mounted.returncode:
        raise OSError(f"no small mount: {mounted.stderr.decode().strip()}")
    stop = threading.Event()

    def fill() -> None:
        while not (study.paths / "journal.jsonl").exists() and not stop.is_set():
            time.sleep(0.05)
        stop.wait(0.3 + (verdict.number % 7) * 0.3)
        with open(study.root / "filler", "wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 10):
                with contextlib.suppress(OSError):
                    while not stop.is_set():
                        file.write(bytes(piece))

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        (study.root / "filler").unlink(missing_ok=True)
        kept = study.folder / "kept"
        subprocess.run(["cp", "-a", str(study.root), str(kept)], check=True)
        subprocess.run(["umount", str(study.root)], check=True)
        study.root.rmdir()
        kept.rename(study.root)


@contextlib.contextmanager
def read_only(study: ChaosStudy, verdict: Verdict) -> Iterator[None]:
    """mlruns becomes read-only in the middle of the study, for everybody (a remount)."""
    study.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(study.root)], check=True)
    stop = threading.Event()

    def turn() -> None:
        while not (study.paths / "journal.jsonl").exists() and not stop.is_set():
            time.sleep(0.02)
        stop.wait(0.3 + (verdict.number % 7) * 0.3)
        while not stop.is_set():  # refused as long as a file is open for writing: MS_RDONLY on the mount point itself is not
            if subprocess.run(["mount", "-o", "remount,ro,bind", str(study.root)], check=False, capture_output=True).returncode == 0:
                return
            time.sleep(0.01)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        subprocess.run(["mount", "-o", "remount,rw,bind", str(study.root)], check=True)
        kept = study.folder / "kept"
        subprocess.run(["cp", "-a", str(study.root), str(kept)], check=True)
        subprocess.run(["umount", str(study.root)], check=True)
        study.root.rmdir()
        kept.rename(study.root)


class _Broken(http.server.BaseHTTPRequestHandler):
    """Answers 500 to everything."""

    def _answer(self) -> None:
        self.send_response(500)
        self.end_headers()

    do_GET = do_POST = do_PATCH = do_PUT = _answer

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def broken_tracking(study: ChaosStudy, verdict: Verdict) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        study.words[:] = [*study.words, f"tracking.uri=http://127.0.0.1:{server.server_address[1]}"]
        try:
            yield
        finally:
            server.shutdown()


def _fault(kind: str, **more: object) -> tuple[str, ...]:
    words = ",".join(f"{name}:{value}" for name, value in {"kind": kind, **more}.items())
    return (f"engine.simulation.faults=[{{{words}}}]",)


FAULTS = (
    *(_fault(kind, launch=2) for kind in ("crash", "os_oom", "cuda_oom", "nccl_error", "hang", "port_taken", "orphan")),
    *(_fault(kind, launch=2, at="load") for kind in ("crash", "os_oom", "cuda_oom", "nccl_error")),
    *(_fault(kind, launch=2) for kind in ("wrong_output", "nan", "ignore_sigterm", "slow_stop")),
    *(_fault(kind, launch=2, after_requests=3) for kind in ("stream_error", "truncated_stream")),
    _fault("ignore_sigterm"),
    _fault("orphan"),
)
TRACKED = ("tracking.enabled=true", "tracking.timeout_s=3")
DOWN = ("tracking.uri=http://127.0.0.1:9",)

EVENTS: tuple[Event, ...] = (
    Event("kill -9 driver", kills("driver"), weight=6),
    Event("kill -9 load worker", kills("worker"), weight=4),
    Event("kill -9 server parent", kills("server"), weight=4),
    Event("kill -9 scheduler child", kills("scheduler"), weight=4),
    Event("kill -9 guard or keeper", kills("guard"), weight=4),
    Event("Ctrl-C once", signals(signal.SIGINT, code=130), weight=3),
    Event("Ctrl-C twice at once", signals(signal.SIGINT, signal.SIGINT, code=130, gap_s=0.02), weight=1),
    Event("Ctrl-C again", signals(signal.SIGINT, signal.SIGINT, code=130, gap_s=1.1), weight=2),
    Event("lost terminal (SIGHUP)", signals(signal.SIGHUP, code=130), weight=2),
    Event("SIGTERM", signals(signal.SIGTERM, code=130), weight=1),
    Event("two studies at once", two_at_once),
    Event("port taken between check and bind", port_taken, weight=2),
    Event("disk full", runs, around=full_disk, weight=3),
    Event("mlruns read-only", runs, around=read_only, weight=2),
    Event("MLflow server down", must_finish, words=(*TRACKED, *DOWN)),
    Event("MLflow answers 500", must_finish, words=TRACKED, around=broken_tracking),
    Event("kill -9 tracking process", kills("tracking"), words=("tracking.enabled=true",)),
    *(Event(f"fault {words[0].split('faults=')[1]}", runs_and_dies, words=words) for words in FAULTS),
    Event("kill -9 driver", kills("driver"), ray=True, weight=2, gone_s=GONE_S),
    Event("kill -9 node actor", kills("actor"), ray=True, weight=2),
    Event("kill -9 raylet", kills("raylet"), ray=True, weight=2, gone_s=GONE_RAYLET_S),
    Event("Ctrl-C once", signals(signal.SIGINT, code=130), ray=True),
)
