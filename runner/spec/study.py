"""Where results go, when the nightly runs, and what a study is called."""

import re
from typing import Any

from pydantic import Field, field_validator

from runner.spec.base import Strict


class StudySpec(Strict):
    """`name` null: made from the experiment and the time. `new` starts a fresh study even if one can be resumed."""

    name: str | None = None
    new: bool = False

    @field_validator("name")
    @classmethod
    def _name_is_a_folder(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value or re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-.")[:120] != value:
            raise ValueError(
                f"a study's name is a folder's: letters, digits, dot, dash, underscore, at most 120; {re.sub('[^A-Za-z0-9._-]+', '-', value).strip('-.')[:120] or 'study'!r} would do"
            )
        return value

    question: str = ""
    hypothesis: str = ""
    experiment: str = ""


class TrackingSpec(Strict):
    """`uri` null: the SQLite store in `root`."""

    root: str = "mlruns"
    uri: str | None = None
    enabled: bool = True
    timeout_s: float = 60.0


class ScheduleSpec(Strict):
    """The nightly sweep. `webhook` and its body never hold a secret: the address is read from the variable that `webhook` names."""

    at: str = "02:00"
    time_limit_minutes: int = 240
    busy_wait_minutes: int = 60
    webhook: str | None = Field(default=None, description="name of the environment variable that holds the address")
    webhook_body: dict[str, Any] | None = Field(
        default=None, description="JSON object to post; {outcome} {study} {node} {sentence} {subject} {summary} are filled in"
    )
    mail_command: str | None = Field(default=None, description="a command, no shell; {subject} is filled in, the summary is its input")
    notify: str = Field(default="alarms", pattern="^(alarms|always|never)$")
    install: bool = False
    form: str = "auto"
    blocks_per_night: int = 2


class RaySpec(Strict):
    """`address` null starts a local Ray without dashboard or usage reporting."""

    address: str | None = None
    nodes: int | None = None


class ExecutionSpec(Strict):
    executor: str = Field(default="ray", pattern="^(ray|inline)$")
    ray: RaySpec = RaySpec()
    lock_dir: str | None = Field(default=None, description="where the node lock and the ledger live; default: a node-wide folder")
    quiet: bool = False


class Extra(Strict):
    """Free mapping for scripts (`+context.exit_code=137`)."""

    values: dict[str, Any] = Field(default_factory=dict)
