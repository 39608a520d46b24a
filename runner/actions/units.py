"""Texts of the nightly schedule: a systemd user timer, a crontab line, a Ray Jobs line. Pure functions, no I/O."""

import re
import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from runner.errors import UserError

UNIT = "engine-flag-nightly"


@dataclass(frozen=True)
class Night:
    """One night's command: `argv` run in `folder`, at most `limit_minutes`, started at `at` (HH:MM, local time)."""

    argv: tuple[str, ...]
    folder: str
    at: str
    limit_minutes: int
    lock: str
    log: str
    told: str
    mail_command: str | None = None

    @property
    def script(self) -> str:
        """Where the shell line lies for cron."""
        return str(Path(self.lock).with_name("nightly.sh"))

    @property
    def clock(self) -> tuple[int, int]:
        """Hour and minute. Raises UserError unless `at` is HH:MM."""
        match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", self.at)
        if match is None:
            raise UserError(f"at={self.at!r} is no time of day; write HH:MM, for example at=02:00")
        return int(match[1]), int(match[2])


def _systemd_words(argv: tuple[str, ...]) -> str:
    """argv in systemd's own quoting: `%` and `$` are specifiers there."""
    return " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"' for word in argv)


def failure_words(night: Night) -> tuple[str, ...]:
    """What tells of a night that could not tell of itself, as words for no shell: the mail command, else the system log. Raises
    UserError where a quote is left open."""
    subject = "Nightly sweep ended without a word of its own"
    if not night.mail_command:
        return ("/usr/bin/logger", "-t", UNIT, f"{subject}; see {night.log}")
    try:
        words = tuple(shlex.split(night.mail_command.replace("{subject}", subject)))
    except ValueError as error:
        raise UserError(f"schedule.mail_command={night.mail_command!r} is no command: {error}") from None
    return words if words and words[0].startswith("/") else ("/usr/bin/env", *words)  # systemd wants a whole path


def systemd_units(night: Night) -> dict[str, str]:
    """File name -> text. The timer is persistent (a missed night is caught up), the service never overlaps itself, is ended
    at the limit (first asked in order, then with all its processes), and calls the failure unit when it fails (exit 3: regression, 75: node busy). One event, one
    message: a night that sent its own leaves the file `told`, and then the failure unit does nothing."""
    hour, minute = night.clock
    folder, told = night.folder.replace("%", "%%"), _systemd_words((night.told,))
    return {
        f"{UNIT}.timer": (
            f"[Unit]\nDescription=Nightly sweep of engine flags\n\n[Timer]\nOnCalendar=*-*-* {hour:02d}:{minute:02d}:00\n"
            f"Persistent=true\nUnit={UNIT}.service\n\n[Install]\nWantedBy=timers.target\n"
        ),
        f"{UNIT}.service": (
            f"[Unit]\nDescription=Nightly sweep of engine flags\nOnFailure={UNIT}-failed.service\n\n[Service]\nType=oneshot\n"
            f"WorkingDirectory={folder}\nExecStartPre=/bin/rm -f {told}\nExecStart={_systemd_words(night.argv)}\nTimeoutStartSec={night.limit_minutes}min\n"
            "KillMode=mixed\nTimeoutStopSec=60\n"
        ),
        f"{UNIT}-failed.service": (
            f"[Unit]\nDescription=Tell that the nightly sweep failed\n\n[Service]\nType=oneshot\nWorkingDirectory={folder}\n"
            f"ExecCondition=/usr/bin/test ! -e {told}\nExecStart={_systemd_words(failure_words(night))}\n"
        ),
    }


def shell_command(night: Night) -> str:
    """The command as one shell line: never beside itself (flock, exit 75), ended at the limit, output to the log. A failure that sent
    no message of its own (that leaves the file `told`) is told here. The exit code is the night's."""
    inner = f"timeout --signal=TERM --kill-after=60 {night.limit_minutes * 60} {shlex.join(night.argv)}"
    folders = shlex.join(sorted({str(Path(file).parent) for file in (night.lock, night.log)}))
    lock, log, told = (shlex.quote(file) for file in (night.lock, night.log, night.told))
    return (
        f"cd {shlex.quote(night.folder)} && mkdir -p {folders} && rm -f {told} && {{ "
        f"flock --nonblock --conflict-exit-code 75 {lock} {inner} >> {log} 2>&1; code=$?; "
        f"[ $code -eq 0 ] || [ -e {told} ] || {shlex.join(failure_words(night))} < /dev/null >> {log} 2>&1; exit $code; }}"
    )


def night_script(night: Night) -> str:
    """The shell line as a file: cron refuses commands of more than about 1,000 characters."""
    return f"#!/bin/sh\n{shell_command(night)}\n"


def crontab_line(night: Night) -> str:
    """One crontab line that runs the script; `%` is escaped, since cron reads it as a line end."""
    hour, minute = night.clock
    return f"{minute} {hour} * * * /bin/sh {shlex.quote(night.script)}".replace("%", r"\%")


def ray_job_line(night: Night, address: str) -> str:
    """Submits the night to a lasting Ray cluster. Ray Jobs has no calendar: the line goes into a crontab or a timer."""
    words = ("ray", "job", "submit", "--address", address, "--no-wait", "--", *night.argv)
    return f"cd {shlex.quote(night.folder)} && RAY_AUTH_MODE=token {shlex.join(words)}"


def next_runs(night: Night, now: datetime, count: int) -> list[datetime]:
    """The next `count` starts after `now` (naive local time), as the timer and the crontab line mean them."""
    hour, minute = night.clock
    first = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if first <= now:
        first += timedelta(days=1)
    return [first + timedelta(days=day) for day in range(count)]
