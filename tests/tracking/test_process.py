"""The tracking process: follows, retries, is never waited for longer than asked, and is gone when its driver is."""

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.records.journal import Journal
from runner.records.paths import RootPaths, StudyPaths
from runner.spec.study import TrackingSpec
from runner.tracking.follower import Follower, brief
from runner.tracking.mlflow_tracker import TrackReport, track_study
from runner.tracking.outbox import read_report
from runner.tracking.process import TrackingProcess, main
from runner.tracking.store import uri_of
from tests.reporting.synthetic import Synthetic, make, write

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small() -> Synthetic:
    return make(blocks=1, arms=2)


class Server:
    """Answers every request with one status, after a pause."""

    def __init__(self, status: int, pause: float) -> None:
        outer = self
        self.requests = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                time.sleep(pause)
                with contextlib.suppress(OSError):  # the client may be gone by now
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(json.dumps({"error_code": "INTERNAL_ERROR", "message": "no"}).encode())

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[int, float], Server]]:
    servers: list[Server] = []

    def make_server(status: int, pause: float) -> Server:
        servers.append(Server(status, pause))
        return servers[-1]

    yield make_server
    for server in servers:
        server.close()


@pytest.fixture
def tracked() -> Iterator[Callable[[RootPaths, StudyPaths, TrackingSpec], TrackingProcess]]:
    started: list[TrackingProcess] = []

    def start(root: RootPaths, study: StudyPaths, tracking: TrackingSpec) -> TrackingProcess:
        started.append(TrackingProcess(root, study, tracking))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.abandon()


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


Start = Callable[[RootPaths, StudyPaths, TrackingSpec], TrackingProcess]


def test_finish_returns_after_mlflow_holds_the_study(root: RootPaths, small: Synthetic, tracked: Start) -> None:
    study = write(root.root, small)
    process = tracked(root, study, TrackingSpec())
    report = process.finish(60)
    assert report.complete and report.written + report.unchanged == 1 + 2 + 2
    assert any("viewStateShareKey" in line for line in process.summary())
    assert process.process is not None and process.process.returncode == 0
    assert process.finish(60) == report


@pytest.mark.parametrize(("status", "pause"), [(500, 0.0), (200, 30.0)])
def test_a_server_that_fails_or_hangs_delays_nobody_and_records_wait(
    root: RootPaths, small: Synthetic, tracked: Start, serve: Callable[[int, float], Server], status: int, pause: float
) -> None:
    study, server = write(root.root, small), serve(status, pause)
    began = time.monotonic()
    process = tracked(root, study, TrackingSpec(uri=server.uri))
    assert time.monotonic() - began < 15, "starting it must not wait for anybody"
    until(lambda: server.requests > 0)
    assert append_seconds(study) < 15, "the server's slowness does not reach the journal"
    began = time.monotonic()
    report = process.finish(1.0)
    assert time.monotonic() - began < 15
    assert len(report.waiting) == 1 + 2 + 2 and report.error
    assert "5 runs" in " ".join(process.summary()) and "action=track" in " ".join(process.summary())
    assert track_study(root, study, TrackingSpec()).complete, "sent later, to a store that answers"


def append_seconds(study: StudyPaths) -> float:
    """Median time of an append to the journal."""
    journal, times = Journal(study.journal), []
    for number in range(11):
        began = time.perf_counter()
        journal.append("event", text=f"launch {number}")
        times.append(time.perf_counter() - began)
    journal.close()
    return sorted(times)[5]


def test_process_ends_when_its_driver_is_killed(root: RootPaths, small: Synthetic, serve: Callable[[int, float], Server]) -> None:
    study, server = write(root.root, small, finished=False), serve(200, 30.0)
    code = (
        "import sys, time; from pathlib import Path; from runner.tracking.process import TrackingProcess;"
        "from runner.records.paths import RootPaths, StudyPaths; from runner.spec.study import TrackingSpec;"
        "p = TrackingProcess(RootPaths(Path(sys.argv[1])), StudyPaths(Path(sys.argv[2])), TrackingSpec(uri=sys.argv[3]));"
        "p.start(); print(p.process.pid, flush=True); time.sleep(600)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(root.root), str(study.folder), server.uri], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        until(lambda: server.requests > 0)
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not alive(pid), 10)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_abandon_ends_it_now(root: RootPaths, small: Synthetic, tracked: Start, serve: Callable[[int, float], Server]) -> None:
    study = write(root.root, small)
    process = tracked(root, study, TrackingSpec(uri=serve(200, 30.0).uri))
    pid = process.process.pid  # type: ignore[union-attr]
    process.abandon()
    process.abandon()
    assert not alive(pid)


def test_by_hand_it_ends_with_the_study(root: RootPaths, small: Synthetic) -> None:
    study = write(root.root, small)
    assert main([str(study.folder), "--root", str(root.root)]) == 0
    report = read_report(study)
    assert report is not None and report.complete and report.uri == uri_of(root, TrackingSpec())


class Sleeper:
    """Counts the seconds that a follower asked to sleep; sets `finish` when nothing else is left to do."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.now = 0.0

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        assert len(self.pauses) < 2000, "it never ends"


def follower(study: StudyPaths, answers: list[TrackReport | Exception], sleeper: Sleeper, driven: bool = False) -> Follower:
    def track() -> TrackReport:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Follower(study, track, driven, sleep=sleeper, clock=lambda: sleeper.now, say=lambda _: None)


GOOD = TrackReport(uri="u", written=1)


def test_pauses_grow_and_end_with_success(tmp_path: Path, small: Synthetic) -> None:
    study, sleeper = write(tmp_path, small), Sleeper()
    errors: list[TrackReport | Exception] = [ConnectionError("down")] * 6
    follow = follower(study, [*errors, GOOD], sleeper)
    assert follow.run().complete
    assert follow.passes == 7
    assert sleeper.now == pytest.approx(0.5 + 1 + 2 + 4 + 8 + 16, abs=0.6)


def test_the_longest_pause_is_a_minute(tmp_path: Path, small: Synthetic) -> None:
    study, sleeper = write(tmp_path, small), Sleeper()
    errors: list[TrackReport | Exception] = [ConnectionError("down")] * 10
    follower(study, [*errors, GOOD], sleeper).run()
    assert sleeper.now < 63.5 + 3 * 60 + 2


def test_a_mistake_of_the_user_is_not_retried(tmp_path: Path, small: Synthetic) -> None:
    study, sleeper = write(tmp_path, small), Sleeper()
    follow = follower(study, [UserError("tracking.uri=x: give http")], sleeper)
    report = follow.run()
    assert follow.passes == 1 and report.error == "error: tracking.uri=x: give http"


def test_an_error_keeps_what_the_last_good_pass_reported(tmp_path: Path, small: Synthetic) -> None:
    study, sleeper = write(tmp_path, small), Sleeper()
    good = GOOD.model_copy(update={"link": "http://h", "waiting": ("x",)})
    follow = follower(study, [good, ConnectionError("down"), GOOD], sleeper)
    follow.finish.set()
    assert follow.run().complete
    assert follow.passes == 3


def test_without_news_it_only_looks(tmp_path: Path, small: Synthetic) -> None:
    study, sleeper = write(tmp_path, small, finished=False), Sleeper()
    follow = follower(study, [GOOD], sleeper, driven=True)

    def look(seconds: float) -> None:
        sleeper(seconds)
        if len(sleeper.pauses) == 50:
            follow.finish.set()

    follow.sleep = look
    follow.run()
    assert follow.passes == 2


def test_passes_take_a_twentieth_of_the_time_while_the_study_runs(tmp_path: Path, small: Synthetic) -> None:
    study, sleeper = write(tmp_path, small, finished=False), Sleeper()
    journal, starts = Journal(study.journal), []
    follow = follower(study, [GOOD], sleeper, driven=True)

    def track() -> TrackReport:
        starts.append(sleeper.now)
        sleeper.now += 1.0  # a pass takes a second
        return GOOD

    def look(seconds: float) -> None:
        sleeper(seconds)
        journal.append("event")  # there is always something new
        if sleeper.now > 100:
            follow.finish.set()

    follow.track, follow.sleep = track, look
    follow.run()
    journal.close()
    rests = [later - earlier for earlier, later in pairwise(starts[:-1])]
    assert len(rests) >= 3 and all(21 <= rest <= 22.5 for rest in rests)


def test_errors_are_told_in_one_line() -> None:
    nested = ConnectionError(
        "API request to http://h:1/api/2.0/x failed with exception HTTPConnectionPool(host='h', port=1): Max retries exceeded "
        "with url: /api/2.0/x (Caused by NewConnectionError(\"HTTPConnection(host='h'): Failed: [Errno 111] Connection refused\"))"
    )
    assert brief(nested) == "[Errno 111] Connection refused at http://h:1/api/2.0/x"
    assert brief(ValueError("two\nlines")) == "ValueError: two lines"
    assert os.linesep not in brief(nested)
