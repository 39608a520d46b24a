"""The engine contract: what the runner asks of anything that serves. Every implementation passes tests/engines/test_contract.py."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from runner.records.schema import Command, EngineIdentity, Failure
from runner.spec.base import Strict
from runner.spec.engine import Deadlines, EngineSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec


class LaunchFailed(Exception):
    """The server did not come up, or died. Carries the diagnosed failure."""

    def __init__(self, failure: Failure, stages: Mapping[str, float] | None = None) -> None:
        super().__init__(failure.line or failure.kind)
        self.failure = failure
        self.stages = dict(stages or {})


class Ranks(Strict):
    """A server that spans machines: this process is rank `rank` of `count`; rank 0 is met at `address` (host:port)."""

    rank: int = Field(ge=0)
    count: int = Field(ge=2)
    address: str

    @property
    def options(self) -> dict[str, Any]:
        """The engine's options for it."""
        return {"nnodes": self.count, "node-rank": self.rank, "dist-init-addr": self.address}


class LaunchOrder(Strict):
    """Everything an engine needs to start one server. Made by planning and execution, read by engines; JSON on disk."""

    study: str
    launch: str
    arm: str
    levels: dict[str, str]
    options: dict[str, Any] = Field(default_factory=dict, description="engine options without leading dashes; true is a bare switch")
    env: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = ()
    block: int = 0
    position: int = 0
    launch_index: int = Field(default=0, description="how many launches of this study came before (drift of the simulated engine)")
    folder: str = Field(description="absolute path of the launch's folder")
    engine: EngineSpec
    model: ModelSpec
    node: NodeSpec
    overlay: str | None = Field(default=None, description="absolute path of the overlay that goes first on the arm's path")
    seed: int = 0
    ranks: Ranks | None = Field(default=None, description="null: the whole server is on one machine")


class Ready(Strict):
    """What a start reported: seconds by stage, pid of the server's parent process, its URL."""

    pid: int | None
    url: str
    stages: dict[str, float] = Field(default_factory=dict)


class Stopped(Strict):
    """How a stop went. `how`: idle, terminated, killed, already_dead, left_running (attached)."""

    how: str
    seconds: float
    exit_code: int | None = None
    memory_free: bool | None = None


class Server(Protocol):
    """One live (or dead) server."""

    url: str
    log: Path
    command: Command

    def wait_ready(self, progress: Callable[[str], None] = ...) -> Ready:
        """Blocks until the server serves and the port is owned by our pid. `progress` gets stage names.
        Raises LaunchFailed (diagnosed) on death, a passed deadline or a foreign owner of the port."""

    def describe(self) -> dict[str, Any]:
        """The body of /server_info (secrets removed). Raises LaunchFailed when the server is gone."""

    def metrics(self) -> str:
        """The text of /metrics, or '' where the engine has none."""

    def reset(self) -> bool:
        """Flushes the prefix cache and verifies it; False when the server refused (requests running)."""

    def alive(self) -> bool:
        """True while the parent and every child that was there at ready live (zombies are gone)."""

    def exit_code(self) -> int | None:
        """Of the parent; None while it lives."""

    def fallen(self) -> Failure | None:
        """None while `alive`. Else the diagnosed failure, and what is left of the server is ended (one that is ours), so that no
        request waits for an answer that cannot come."""

    def stop(self) -> Stopped:
        """Abort, SIGTERM, deadline, SIGKILL of the group, wait until no process of the tree lives. Never raises."""


class Engine(Protocol):
    """Makes servers."""

    kind: str

    def identify(self) -> EngineIdentity:
        """Version and build of the engine. Raises UserError when the interpreter has no engine."""

    def start(self, order: LaunchOrder, owner: "Owner") -> Server:
        """Starts one server process (or attaches) and returns at once. Raises LaunchFailed (port in use) or UserError."""


class Owner(Protocol):
    """Who ends the processes: a detached guard (production) or a plain one (tests)."""

    def spawn(self, argv: list[str], env: Mapping[str, str], log: Path, cwd: Path | None = None) -> "OwnedProcess":
        """Starts argv (no shell) in its own session with stdout and stderr to `log`; written to the ledger before it runs."""

    def close(self) -> None:
        """Ends everything that was spawned and the guard itself. Idempotent."""


class OwnedProcess(Protocol):
    pid: int

    def poll(self) -> int | None:
        """Exit code (negative: signal) or None while alive."""

    def tree(self) -> list[int]:
        """Live pids of the whole tree (double forks included), zombies left out."""

    def terminate(self) -> None: ...

    def kill(self) -> None:
        """SIGKILL to the whole tree."""

    def wait_gone(self, timeout: float) -> bool:
        """True when no process of the tree lives any more."""


def argv_of(options: Mapping[str, Any]) -> list[str]:
    """Engine options as argv words, in the order given: true is a bare switch, false and None are left out, a list gives
    several words, a dict gives JSON. Names keep their dashes: `{"tp-size": 8}` -> `["--tp-size", "8"]`."""
    import json

    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.lstrip('-')}")
        if value is True:
            continue
        if isinstance(value, (list, tuple)):
            words += [str(item) for item in value]
        elif isinstance(value, dict):
            words.append(json.dumps(value, separators=(",", ":")))
        else:
            words.append(str(value))
    return words


__all__ = [
    "Command",
    "Deadlines",
    "Engine",
    "EngineIdentity",
    "LaunchFailed",
    "LaunchOrder",
    "OwnedProcess",
    "Owner",
    "Ranks",
    "Ready",
    "Server",
    "Stopped",
    "argv_of",
]
