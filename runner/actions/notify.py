"""Tells people about a night: a webhook, a mail command. A message that cannot be sent is said, never an error of the night."""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.actions.night_text import fields_of, markdown
from runner.records.files import write_text
from runner.records.night import NightReport
from runner.records.paths import RootPaths
from runner.spec.study import ScheduleSpec

TIMEOUT_S = 20.0


def told_file(root: RootPaths) -> Path:
    """There when the last night sent its own message (or was told to send none): nobody else then tells of the same event."""
    return root.root / "nightly.told"


def notify(report: NightReport, schedule: ScheduleSpec, root: RootPaths | None = None) -> list[str]:
    """Sends what the schedule asks for; returns a line a message about what became of it. No address or secret is in them.

    `root`: the results root, where `told_file` is left when a message went out."""
    lines = _sent(report, schedule)
    if root is not None and (schedule.notify == "never" or any(line.endswith(": sent") for line in lines)):
        with contextlib.suppress(OSError):
            write_text(told_file(root), f"{report.subject}\n")
    return lines


def _sent(report: NightReport, schedule: ScheduleSpec) -> list[str]:
    if schedule.notify == "never" or (schedule.notify == "alarms" and not report.alarm):
        return []
    lines = []
    if schedule.webhook is not None:
        lines.append(f"webhook ({schedule.webhook}): {post(report, schedule.webhook, schedule.webhook_body)}")
    if schedule.mail_command is not None:
        lines.append(f"mail: {mail(report, schedule.mail_command)}")
    return lines


def filled(template: Any, fields: Mapping[str, str]) -> Any:
    """`{name}` in every text of a JSON value replaced by the field; the result is always a JSON value again."""
    if isinstance(template, dict):
        return {name: filled(value, fields) for name, value in template.items()}
    if isinstance(template, list):
        return [filled(value, fields) for value in template]
    if isinstance(template, str):
        return fill_text(template, fields)
    return template


def fill_text(text: str, fields: Mapping[str, str]) -> str:
    """One pass, so that a field's own text is never read as a template."""
    import re

    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), text)


def post(report: NightReport, variable: str, template: Mapping[str, Any] | None) -> str:
    """Posts JSON to the address in the environment variable `variable`."""
    import requests

    address = os.environ.get(variable, "")
    if not address:
        return f"not sent: the environment variable {variable} is not set"
    fields = fields_of(report)
    default = {
        "text": f"{report.subject}\n{report.sentence}",
        **report.model_dump(mode="json", by_alias=True, exclude={"history"}),
        "summary": fields["summary"],
    }
    body = default if template is None else filled(dict(template), fields)
    try:
        answer = requests.post(address, json=body, timeout=TIMEOUT_S)
    except requests.RequestException as error:
        return f"not sent: {type(error).__name__}"  # its text holds the address
    return "sent" if answer.ok else f"refused with status {answer.status_code}"


def mail(report: NightReport, command: str) -> str:
    """Runs the command (no shell) with the summary as its input."""
    fields = fields_of(report)
    try:
        argv = [fill_text(word, fields) for word in shlex.split(command)]
        if not argv:
            return "not sent: schedule.mail_command is empty"
        done = subprocess.run(argv, input=markdown(report), capture_output=True, text=True, timeout=60, check=False)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"not sent: {type(error).__name__}"
    return "sent" if done.returncode == 0 else f"the command ended with {done.returncode}: {done.stderr.strip()[-200:]}"
