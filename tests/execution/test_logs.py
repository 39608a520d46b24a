"""Logs of a server's life, and room on disk."""

from pathlib import Path

import zstandard

from runner.execution import logs


def unpacked(path: Path) -> bytes:
    with open(path, "rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def test_a_small_log_stays_readable(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("ready\n")
    assert logs.compress(log) == log and log.read_text() == "ready\n"


def test_a_large_log_is_compressed_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"a line of the engine\n" * 1000)
    packed = logs.compress(log, plain=100)
    assert packed.name == "server.log.zst" and not log.exists()
    assert unpacked(packed) == b"a line of the engine\n" * 1000


def test_a_log_over_the_cap_keeps_its_start_and_its_end_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"START" + b"x" * 10_000 + b"THE END")
    text = unpacked(logs.compress(log, cap=200, plain=100))
    assert text.startswith(b"START") and text.endswith(b"THE END") and b"9812 bytes left out" in text


def test_the_log_of_an_earlier_try_is_set_aside(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    logs.set_aside(log)
    log.write_text("address already in use\n")
    logs.set_aside(log)
    assert not log.exists() and (tmp_path / "server.before.log").read_text() == "address already in use\n"
