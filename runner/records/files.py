"""Writing so that nothing is ever half there: write, flush, fsync, rename."""

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Atomic: readers see the old content or the new one. Creates the folder. Raises OSError (disk full, read-only)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`value` in JSON types; NaN and infinities are refused (ValueError), since readers elsewhere refuse them."""
    write_text(path, json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
