"""The executor without Ray: this process, this machine, the same worker."""

from collections.abc import Iterator

from runner.execution.executor import NodeHandle
from runner.execution.job import Event, LaunchJob, NodeFacts, NodeOrder
from runner.execution.worker import NodeWorker


class InlineNode:
    """The local machine as the only node."""

    name = "local"

    def __init__(self, order: NodeOrder) -> None:
        self._worker = NodeWorker(order)

    def describe(self) -> NodeFacts:
        return self._worker.describe()

    def topology(self) -> str:
        return self._worker.topology()

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        return self._worker.launch(job)

    def close(self) -> None:
        self._worker.close()


class InlineExecutor:
    kind = "inline"

    def __init__(self) -> None:
        self._nodes: list[InlineNode] = []

    def open(self, order: NodeOrder, nodes: int | None) -> list[NodeHandle]:
        node = InlineNode(order)
        self._nodes.append(node)
        return [node]

    def replace(self, order: NodeOrder) -> NodeHandle | None:
        return None

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        self._nodes.clear()
