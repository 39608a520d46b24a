"""Stages of real starts, and deadlines that follow progress."""

from pathlib import Path

import pytest

from runner.engines.stages import LogTail, StageTracker
from runner.spec.engine import Deadlines

FIXTURES = Path(__file__).parents[1] / "fixtures"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stages_of(name: str, clock: Clock) -> StageTracker:
    tracker = StageTracker(Deadlines(), clock)
    for line in (FIXTURES / name).read_text(errors="replace").splitlines():
        tracker.feed([line])
        clock.after(0.001)
        if tracker.stage == "ready":
            break
    return tracker


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        ("h200/base1.server.log", ["bind", "distributed", "weights", "kv", "graphs", "warmup", "ready"]),
        ("h200/dense_tp1.server.log", ["bind", "distributed", "weights", "kv", "graphs", "warmup", "ready"]),
        ("cpu/sglang_cpu_server.log", ["bind", "distributed", "weights", "kv", "warmup", "ready"]),
        ("h200/hang_at_launch.server.log", ["bind", "distributed", "weights", "kv"]),
        ("h200/tbo.server.log", ["bind"]),
    ],
)
def test_stages_of_real_logs(log: str, seen: list[str], clock: Clock) -> None:
    tracker = stages_of(log, clock)
    assert list(tracker.entered) == seen
    assert list(tracker.durations()) == [stage for stage in seen if stage != "ready"]


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[2026-01-01 00:00:00] server_args=ServerArgs(model_path='x')", "distributed"),
        ("[2026-01-01 00:00:00] server_args={'model_path': 'x'}", "distributed"),
        ("[2026-01-01 00:00:00 TP3] Init torch distributed begin.", "distributed"),
        ("Loading safetensors checkpoint shards:   3% Completed | 2/62 [00:10<05:00]", "weights"),
        ("[2026-01-01 00:00:00 TP0] Memory pool end. avail mem=10.00 GB", "kv"),
        ("[2026-01-01 00:00:00 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9 GB", "graphs"),
        ("[2026-01-01 00:00:00 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1", "graphs"),
        ("[2026-01-01 00:00:00 TP0] Capture cpu graph begin.", "graphs"),
        ("[2026-01-01 00:00:00] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)", "warmup"),
        ("[2026-01-01 00:00:00] The server is fired up and ready to roll!", "ready"),
    ],
)
def test_lines_of_all_versions(line: str, stage: str, clock: Clock) -> None:
    tracker = StageTracker(Deadlines(), clock)
    tracker.feed([line])
    assert tracker.stage == stage


def test_a_stage_never_goes_back(clock: Clock) -> None:
    tracker = StageTracker(Deadlines(), clock)
    tracker.feed(["[x TP1] Capture cuda graph begin.", "[x TP0] Load weight begin. avail mem=1 GB"])
    assert tracker.stage == "graphs"


def test_a_port_conflict_is_dying_although_it_says_ready(clock: Clock) -> None:
    tracker = stages_of("cpu/port_conflict.log", clock)
    assert tracker.stage == "ready" and tracker.dying
    assert not stages_of("cpu/sglang_cpu_server.log", clock).dying


def test_a_deadline_counts_from_the_last_progress(clock: Clock) -> None:
    tracker = StageTracker(Deadlines(weights_s=60, silent_s=50, distributed_s=20), clock)
    tracker.feed(["Load weight begin."])
    for percent in range(20):
        clock.after(40)
        tracker.feed([f"Loading safetensors checkpoint shards: {percent}%"])
        assert tracker.overdue() is None
    clock.after(51)
    overdue = tracker.overdue()
    assert overdue is not None and (overdue.stage, overdue.limit_name, overdue.limit_s) == ("weights", "silent_s", 50)
    assert str(overdue) == "no progress for 51 s in stage weights (deadlines.silent_s=50)"


def test_the_stages_own_deadline_may_be_shorter(clock: Clock) -> None:
    tracker = StageTracker(Deadlines(distributed_s=20, silent_s=50), clock)
    tracker.feed(["server_args={}"])
    clock.after(21)
    assert (tracker.overdue() or pytest.fail("not overdue")).limit_name == "distributed_s"


def test_the_same_words_again_are_no_progress(clock: Clock) -> None:
    tracker = StageTracker(Deadlines(distributed_s=20), clock)
    tracker.feed(["server_args={}"])
    for second in range(30):
        clock.after(1)
        tracker.feed([f"[2026-01-01 00:00:{second:02d} TP0] still waiting for rank 1"])
    assert tracker.overdue() is not None


def test_compiling_for_long_is_no_hang_until_its_own_deadline(clock: Clock) -> None:
    tracker = StageTracker(Deadlines(graphs_s=100, silent_s=30, compile_s=200), clock)
    tracker.feed(["Capture cuda graph begin."])
    for _ in range(19):
        clock.after(10)
        tracker.note("compiling")
        assert tracker.overdue() is None and tracker.compiling
    clock.after(11)
    tracker.note("compiling")
    overdue = tracker.overdue()
    assert overdue is not None and overdue.compiling and overdue.limit_name == "compile_s"


def test_when_the_compilers_stop_the_silence_counts_from_then(clock: Clock) -> None:
    tracker = StageTracker(Deadlines(graphs_s=100, silent_s=30, compile_s=200), clock)
    tracker.feed(["Capture cuda graph begin."])
    for _ in range(15):
        clock.after(10)
        tracker.note("compiling")
    clock.after(29)
    assert tracker.overdue() is None
    clock.after(2)
    overdue = tracker.overdue()
    assert overdue is not None and not overdue.compiling and overdue.limit_name == "silent_s"


def test_reading_weights_is_progress_and_reading_elsewhere_is_none(clock: Clock) -> None:
    for line, alive in (("Load weight begin.", True), ("Capture cuda graph begin.", False)):
        tracker = StageTracker(Deadlines(weights_s=50, silent_s=30, graphs_s=50, compile_s=60), clock)
        tracker.feed([line])
        for _ in range(20):
            clock.after(10)
            tracker.note("reading")
        assert (tracker.overdue() is None) == alive


def test_the_tail_reads_whole_lines_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    tail = LogTail(log)
    assert tail.new_lines() == ([], False)
    log.write_bytes(b"one\ntw")
    assert tail.new_lines() == (["one"], True)
    with open(log, "ab") as file:
        file.write("o ü\n 10%\r 20%\r\n".encode())
    assert tail.new_lines() == (["two ü", " 10%", " 20%"], True)
    assert tail.new_lines() == ([], False)


def test_a_long_log_keeps_its_first_lines_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("cause\n" + "x" * 5000 + "\nend\n")
    text = LogTail(log).whole(limit=1000)
    assert text.startswith("cause\n") and text.endswith("end\n") and "[... cut ...]" in text and len(text) < 1100
