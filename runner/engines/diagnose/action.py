"""`action=diagnose`: a log file in, one JSON object out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.engines.diagnose.judge import diagnose
from runner.engines.diagnose.reading import HEAD_BYTES, TAIL_BYTES
from runner.errors import UserError
from runner.records.secrets import scrub_text

# A longer file is read only at its head and its tail; between them only its size is known.
MAX_BYTES = 256_000_000


def diagnose_file(path: Path, context: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The object that the action prints: class, confidence, line, cause, remedy, retry. Raises UserError when it cannot be read."""
    try:
        if path.is_dir():
            raise UserError(f"log={path} is a folder; give the server.log in it")
        data = _read(path)
    except OSError as problem:
        raise UserError(f"log={path}: {problem.strerror or problem}; give the path of a readable server log") from None
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"log={path} is a binary file, not a server log")
    found = diagnose(data.decode("utf-8", errors="replace"), context)
    return found.model_copy(update={"line": scrub_text(found.line)}).json()


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= MAX_BYTES:
            return file.read()
        head = file.read(HEAD_BYTES)
        file.seek(size - 4 * TAIL_BYTES)
        return head + b"\n" + file.read()
