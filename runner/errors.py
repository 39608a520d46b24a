"""Errors that end a command, each with its exit code. `__main__` prints the message alone, without a traceback."""

import difflib
from collections.abc import Iterable


class RunnerError(Exception):
    """Base of every error that is meant for the person at the terminal."""

    exit_code = 1


class UserError(RunnerError):
    """The user's mistake: the message says what, where, which choices there are and what to do."""

    exit_code = 2


class NotFinished(RunnerError):
    """The study stopped before its end and can be resumed by the same command."""

    exit_code = 4


class NodeBusy(RunnerError):
    """Another study (or a foreign process) holds the node."""

    exit_code = 75


def choices(names: object, limit: int = 40) -> str:
    """Formats the legal names for an error message: sorted, comma-separated, cut at `limit` names."""
    listed = sorted(str(name) for name in names)  # type: ignore[attr-defined]
    shown = ", ".join(listed[:limit]) or "none"
    return shown if len(listed) <= limit else f"{shown}, ... ({len(listed) - limit} more)"


def instead(given: object, names: Iterable[object]) -> str:
    """What follows a name that is not legal: ` (did you mean 'protocol'?)` where one of `names` is close, then `; choices: ...`."""
    legal = [str(name) for name in names]
    near = difflib.get_close_matches(str(given), legal, n=1, cutoff=0.7)
    return (f" (did you mean {near[0]!r}?)" if near else "") + f"; choices: {choices(legal)}"
