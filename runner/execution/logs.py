"""Server logs on disk: one log a life of a server, capped and compressed once that life is over."""

import os
from pathlib import Path

CAP_BYTES = 64 * 1024 * 1024
"""What is kept of one log before compression: a start and its end decide; a debug log at tp 8 writes gigabytes between them."""
PLAIN_BYTES = 1024 * 1024
"""Smaller logs stay as they are: readable with any tool."""


def set_aside(log: Path) -> None:
    """Moves the log of an earlier try of the same launch away (NAME.log becomes NAME.before.log): its lines, ready or error, would
    be taken for the new server's. Only the last one is kept."""
    if log.exists():
        log.replace(log.with_name(f"{log.stem}.before{log.suffix}"))


def compress(log: Path, cap: int = CAP_BYTES, plain: int = PLAIN_BYTES) -> Path:
    """Caps a finished log to its first and last cap/2 bytes and compresses it to NAME.log.zst, when it is larger than `plain` bytes.
    Returns the path of what is there now. The original goes only when the copy is on disk; on a full disk it simply stays."""
    if not log.exists() or log.stat().st_size <= plain:
        return log
    import zstandard

    target = log.with_name(log.name + ".zst")
    temporary = target.with_name(target.name + ".part")
    size = log.stat().st_size
    try:
        with open(log, "rb") as source, open(temporary, "wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as sink:
            if size <= cap:
                _copy(source, sink, size)
            else:
                _copy(source, sink, cap // 2)
                sink.write(f"\n[... {size - 2 * (cap // 2)} bytes left out: the log was larger than {cap} bytes ...]\n".encode())
                source.seek(size - cap // 2)
                _copy(source, sink, cap // 2)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        return log
    log.unlink()
    return target


def _copy(source, sink, count: int) -> None:  # type: ignore[no-untyped-def]
    while count > 0 and (data := source.read(min(count, 1 << 20))):
        sink.write(data)
        count -= len(data)
