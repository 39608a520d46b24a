"""The executor contract: how node workers are reached. `inline` and `ray` pass the same contract test."""

from collections.abc import Iterator
from typing import Protocol

from runner.execution.job import Event, LaunchJob, NodeFacts, NodeOrder


class NodeLost(Exception):
    """The node (actor, raylet, machine) is gone; its launch in flight is lost and must be repeated elsewhere or later."""


class NodeHandle(Protocol):
    """One node in our hands."""

    name: str

    def describe(self) -> NodeFacts: ...

    def topology(self) -> str:
        """`nvidia-smi topo -m` of the node's first machine, '' where nothing tells. Takes seconds; callable while a launch runs."""

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        """Raises NodeLost, ClientBroken."""

    def close(self) -> None:
        """Ends whatever runs there, waits for it and gives the node back; callable from another thread, and twice."""


class Executor(Protocol):
    kind: str

    def open(self, order: NodeOrder, nodes: int | None) -> list[NodeHandle]:
        """Takes up to `nodes` nodes (null: all with the GPUs asked for). Raises NodeBusy, UserError."""

    def replace(self, order: NodeOrder) -> NodeHandle | None:
        """One more node after one was lost; None when there is none."""

    def close(self) -> None: ...
