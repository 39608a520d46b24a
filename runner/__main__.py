"""`python -m runner`: from the very first import on, Ctrl-C is an end without a trace."""

import os
import signal


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # nothing is begun yet: no file, no process


def main() -> None:
    """Never returns: ends the process with the exit code of design section 3."""
    signal.signal(signal.SIGINT, _leave)
    from runner.actions.command import main as command

    command()


if __name__ == "__main__":
    main()
