"""Where results go, when the nightly runs, and what a study is called."""

from typing import Any

from pydantic import Field

from runner.spec.base import Strict


class StudySpec(Strict):
    """`name` null: made from the experiment and the time. `new` starts a fresh study even if one can be resumed."""

    name: str | None = None
    new: bool = False
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
    """The nightly sweep."""

    at: str = "02:00"
    time_limit_minutes: int = 240
    busy_wait_minutes: int = 60
    webhook: str | None = None
    mail_command: str | None = None
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
