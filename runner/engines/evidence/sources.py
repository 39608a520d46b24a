"""What evidence is read from, and what each source can say. A source that was not read is None: it neither proves nor contradicts."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_READY = ("The server is fired up and ready to roll", "Uvicorn running on")
_DEBUG_SET = re.compile(r"log_level['\"]?[=:] ?['\"]debug['\"]")
_SERVER_ARGS = re.compile(r"server_args=(?:ServerArgs\((?P<call>.*)\)|(?P<dict>\{.*\}))\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """Texts and bodies of one launch. `debug`: the server ran at log level debug, so a missing debug line says something.

    `trace`: names of the kernels that a short profile saw. `probe`: the environment probe (`probe.run_probe`).
    """

    log: str = ""
    debug: bool = False
    server_info: Mapping[str, Any] | None = None
    metrics: str | None = None
    probe: Mapping[str, Any] | None = None
    trace: tuple[str, ...] | None = None

    @property
    def reached_ready(self) -> bool:
        """True when the log covers a start from its first line to readiness, so that a missing line means that it was not printed."""
        return any(word in self.log for word in _READY)

    @property
    def shows_debug(self) -> bool:
        return self.debug or _DEBUG_SET.search(self.log) is not None

    @property
    def resolved(self) -> Mapping[str, Any] | None:
        """/server_info, or the arguments that the log itself prints, or None."""
        return self.server_info if self.server_info is not None else logged_arguments(self.log)

    @property
    def resolved_from(self) -> str:
        return "server_info" if self.server_info is not None else "log"


def logged_arguments(log: str) -> dict[str, Any] | None:
    """The plain values of the line `server_args=...`; nested values are left out. None without such a line."""
    import ast

    match = _SERVER_ARGS.search(log)
    if match is None:
        return None
    if match["dict"]:
        try:
            parsed = ast.literal_eval(match["dict"])
        except (ValueError, SyntaxError):
            return None
        return parsed if isinstance(parsed, dict) else None
    try:
        call = ast.parse(f"f({match['call']})", mode="eval").body
    except SyntaxError:
        return None
    return dict(_plain_keywords(call))


def _plain_keywords(call: Any) -> Iterator[tuple[str, Any]]:
    import ast

    for keyword in call.keywords:
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, SyntaxError, TypeError):
            continue
        if keyword.arg:
            yield keyword.arg, value


def find_line(log: str, text: str) -> tuple[int, str] | None:
    """(line number from 1, the line) of the first line that contains `text`, or None. The line that echoes the server's arguments
    is passed over: it tells what was asked, not what happened."""
    place = log.find(text)
    while place >= 0:
        start = log.rfind("\n", 0, place) + 1
        end = log.find("\n", place)
        line = log[start : end if end >= 0 else len(log)]
        if "server_args=" not in line:
            return log.count("\n", 0, place) + 1, line.strip()
        place = log.find(text, start + len(line))
    return None
