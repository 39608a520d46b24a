"""`python -m runner`: from the very first import on, Ctrl-C is an end without a trace."""

import os
import signal
import sys
from pathlib import Path


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # nothing is begun yet: no file, no process


def main() -> None:
    """Never returns: ends the process with the exit code of design section 3."""
    signal.signal(signal.SIGINT, _leave)
    try:
        from runner.actions.command import main as command
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] == "runner":
            raise
        sys.exit(elsewhere(missing.name))
    command()


def elsewhere(package: str | None) -> int:
    """Says that this Python is not the runner's own; returns the exit code."""
    here = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
    remedy = f"{here} -m runner" if here.exists() else "`make .venv/.installed`, then .venv/bin/python -m runner"
    print(f"error: {sys.executable} has no package {package!r}: this is not the runner's environment; take {remedy}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
