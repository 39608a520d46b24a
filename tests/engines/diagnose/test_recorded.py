"""Logs recorded from real servers (fixtures/h200, fixtures/cpu), with what was known beside them."""

import time
from pathlib import Path
from typing import Any

import pytest

from runner.engines.diagnose import diagnose
from runner.engines.diagnose.action import diagnose_file
from runner.errors import UserError

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
RECORDED: list[tuple[str, dict[str, Any], str]] = [
    ("h200/nccl1.server.log", {"process_alive": True, "health": 200}, "healthy_with_warnings"),
    ("h200/base1.server.log", {"exit_code": 137}, "clean_shutdown"),
    ("h200/dense_tp1.server.log", {"exit_code": -9, "process_alive": False}, "clean_shutdown"),
    ("h200/fusion.server.log", {}, "clean_shutdown"),
    ("h200/tbo.server.log", {"exit_code": 1}, "rejected_argument_combination"),
    ("h200/sbo.server.log", {"exit_code": 137}, "rejected_argument_combination"),
    ("h200/hang_at_launch.server.log", {"process_alive": True, "silent_for_s": 159, "compiler_children": 3}, "still_compiling"),
    ("h200/hang_at_launch.server.log", {"process_alive": True, "silent_for_s": 159, "cache_growing": True}, "still_compiling"),
    ("h200/hang_at_launch.server.log", {"process_alive": True, "silent_for_s": 900, "compiler_children": 3}, "still_compiling"),
    ("h200/hang_at_launch.server.log", {"process_alive": True, "silent_for_s": 2000, "compiler_children": 3}, "jit_compile_hang"),
    ("h200/hang_at_launch.server.log", {}, "unknown"),
    ("h200/hang_at_launch.server.log", {"exit_code": 137}, "unknown"),
    ("cpu/bad_model_stderr.txt", {"exit_code": 1}, "model_import_failed"),
    ("cpu/invalid_flag_stderr.txt", {"exit_code": 2}, "unknown_cli_option"),
    ("cpu/port_conflict.log", {"exit_code": 3}, "port_in_use"),
    ("cpu/port_conflict.log", {"exit_code": 1}, "port_in_use"),
    ("cpu/port_conflict.log", {}, "port_in_use"),
    ("cpu/sglang_cpu_server.log", {"exit_code": 0}, "clean_shutdown"),
    ("cpu/sigterm_under_load.log", {"exit_code": 0}, "clean_shutdown"),
    ("cpu/sigterm_under_load.log", {"process_alive": True, "silent_for_s": 120}, "shutdown_stuck"),
    ("cpu/sigkill_detokenizer.log", {"process_alive": True, "silent_for_s": 40}, "detokenizer_died"),
    ("cpu/sigkill_detokenizer.log", {"exit_code": -9}, "detokenizer_died"),
    ("cpu/sigkill_scheduler.log", {"exit_code": -9}, "scheduler_died"),
    ("cpu/tp2_numa_fail.log", {"exit_code": 137}, "scheduler_init_crash"),
    ("cpu/metrics.txt", {}, "unknown"),
    ("cpu/server_info.txt", {}, "unknown"),
]


@pytest.mark.parametrize(("name", "context", "kind"), RECORDED)
def test_a_recorded_log(name: str, context: dict[str, Any], kind: str) -> None:
    found = diagnose((FIXTURES / name).read_text(errors="replace"), context)
    assert found.kind == kind, f"{found.kind} ({found.confidence}): {found.line}"
    if kind == "unknown":
        assert found.confidence <= 0.2


def test_the_server_that_is_killed_in_the_middle_of_serving_is_not_said_to_be_out_of_memory() -> None:
    log = (FIXTURES / "cpu/sigkill_scheduler.log").read_text()
    assert diagnose(log, {"exit_code": 137, "dmesg_oom": False}).kind == "scheduler_died"
    assert diagnose(log, {"exit_code": 137, "dmesg_oom": True}).kind == "os_oom_killer"


@pytest.mark.parametrize("code", [0, 1, 2, 3, -9, 137, -6, -11, 139, 75])
def test_an_exit_code_alone_never_decides(code: int) -> None:
    found = diagnose("", {"exit_code": code, "process_alive": False})
    assert (found.kind, found.confidence <= 0.2) == ("unknown", True)


def test_words_for_true_and_numbers_as_text_are_understood_and_unknown_keys_ignored() -> None:
    log = (FIXTURES / "h200/hang_at_launch.server.log").read_text()
    words = {"process_alive": "true", "silent_for_s": "2000", "compiler_children": "3", "weather": "fine", "Exit-Code": None}
    assert diagnose(log, words).kind == "jit_compile_hang"


def test_a_deadline_of_its_own_moves_the_border_between_compiling_and_hanging() -> None:
    log = (FIXTURES / "h200/hang_at_launch.server.log").read_text()
    known: dict[str, object] = {"process_alive": True, "silent_for_s": 200, "compiling": True}
    assert diagnose(log, known).kind == "still_compiling"
    assert diagnose(log, {**known, "deadline": "compile_s", "deadline_s": 100}).kind == "jit_compile_hang"


@pytest.mark.parametrize(
    ("last", "deadline", "kind"),
    [
        ("Init torch distributed begin.", "distributed_s", "nccl_init_hang"),
        ("Capture cuda graph begin. This can take up to several minutes.", "graphs_s", "cuda_graph_capture_hang"),
        ("INFO:     Uvicorn running on http://127.0.0.1:1", "warmup_s", "health_check_timeout"),
    ],
)
def test_a_stage_that_passed_its_own_deadline_hangs_however_short_that_is(last: str, deadline: str, kind: str) -> None:
    log = f"[2026-01-01 00:00:01 TP0] {last}\n"
    known: dict[str, object] = {"process_alive": True, "silent_for_s": 5, "compiling": False}
    assert diagnose(log, known).kind != kind or diagnose(log, known).confidence < 0.5
    assert diagnose(log, {**known, "deadline": deadline, "deadline_s": 4}).kind == kind


def test_forty_megabytes_are_read_in_a_moment() -> None:
    start = (FIXTURES / "h200/nccl1.server.log").read_text()
    batches = [
        f"[2026-11-29 15:{i % 60:02d}:{i % 59:02d} TP0] Decode batch, #running-req: {i % 64}, #token: {i}, token usage: 0.{i % 100:02d}, "
        f"cuda graph: True, gen throughput (token/s): {i * 0.37:.2f}, #queue-req: {i % 7}\n"
        f'[2026-11-29 15:{i % 60:02d}:{i % 59:02d}] INFO:     127.0.0.1:{40000 + i % 9000} - "POST /generate HTTP/1.1" 400 Bad Request {i}\n'
        for i in range(170_000)
    ]
    crash = (
        "[2026-11-29 16:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/engine/sglang/srt/managers/scheduler.py", line 9, in event_loop_overlap\n    self.run_batch(batch)\n'
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    )
    middle = "".join([start, *batches[:80_000], crash, *batches[80_000:]])
    assert len(middle) > 40_000_000
    began = time.process_time()
    found = diagnose(middle)
    spent = time.process_time() - began
    assert found.kind == "cuda_illegal_memory_access"
    assert middle.split("\n").index(found.line) > 100_000
    assert spent < 3, f"{spent:.1f} s"


def test_distinct_lines_without_end_do_not_take_long() -> None:
    text = "".join(f"line of words {chr(97 + i % 26) * (i % 40)} {hex(i * 7919)} abc{chr(97 + i % 23)}xyz\n" for i in range(60_000))
    began = time.process_time()
    assert diagnose(text).kind == "unknown"
    assert time.process_time() - began < 3


def test_the_action_prints_its_six_keys_and_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("launch_server.py: error: unrecognized arguments: --api-key hf_AbCdEfGhIjKlMnOpQrSt\n")
    printed = diagnose_file(log, {"exit_code": 2})
    assert list(printed) == ["class", "confidence", "line", "cause", "remedy", "retry"]
    assert printed["class"] == "unknown_cli_option"
    assert "hf_" not in printed["line"]


def test_files_that_cannot_be_read_are_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.log"):
        diagnose_file(tmp_path / "missing.log")
    with pytest.raises(UserError, match="folder"):
        diagnose_file(tmp_path)
    binary = tmp_path / "core"
    binary.write_bytes(b"\x7fELF\0\0\0\0" * 100)
    with pytest.raises(UserError, match="binary"):
        diagnose_file(binary)


def test_odd_bytes_and_endings_do_not_matter(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff\xfe garbage \x80\r\n\x1b[31mlaunch_server.py: error: unrecognized arguments: --foo\x1b[0m\r\n")
    assert diagnose_file(log)["class"] == "unknown_cli_option"


def test_a_diagnosis_becomes_the_failure_of_a_record() -> None:
    refused = diagnose((FIXTURES / "h200/tbo.server.log").read_text(), {"exit_code": 1}).failure(stage="start", exit_code=1)
    assert (refused.kind, refused.refused_at, refused.exit_code) == ("rejected_argument_combination", "start", 1)
    died = diagnose((FIXTURES / "cpu/sigkill_scheduler.log").read_text()).failure()
    assert (died.refused_at, died.retry) == (None, "once")
