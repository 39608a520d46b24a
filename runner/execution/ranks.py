"""Servers that span machines: rank 0 is launched as every server is; each further machine holds one engine process of its rank.

A rank has no HTTP of its own. It is started before rank 0, ends when rank 0 has ended, and when it dies first, rank 0 is ended too:
a collective that waits for a dead rank waits for minutes."""

import threading
from pathlib import Path

from runner.engines import ports
from runner.engines.base import LaunchFailed, LaunchOrder, Ranks, Server
from runner.errors import UserError
from runner.execution.job import LaunchJob
from runner.spec.node import NodeSpec

LOOK_S = 0.2


def demand_whole(node: NodeSpec) -> None:
    """Raises UserError where the GPUs do not divide evenly over the machines."""
    if node.gpus % node.machines:
        raise UserError(
            f"node {node.name}: {node.gpus} GPUs do not divide over {node.machines} machines; correct node.gpus or node.machines"
        )


def rank_job(job: LaunchJob, rank: int, address: str) -> LaunchJob:
    """The job of one rank. Ranks above 0 write to a folder of their own below the launch's."""
    order = job.order
    ranks = Ranks(rank=rank, count=order.node.machines, address=address)
    folder = order.folder if rank == 0 else str(Path(order.folder) / f"rank-{rank}")
    return job.model_copy(update={"order": order.model_copy(update={"ranks": ranks, "folder": folder})})


def meeting_point(host: str, port_range: tuple[int, int]) -> str:
    """host:port on this machine where the ranks meet; the port is free now and lies outside the ephemeral range."""
    return f"{host}:{ports.pick_ports(port_range)[0]}"


class Follower:
    """The engine process of one rank above 0. `end` may be called from another thread than `watch`."""

    def __init__(self, server: Server, order: LaunchOrder) -> None:
        assert order.ranks is not None
        self._server, self._rank = server, order.ranks.rank
        self._ended = threading.Event()

    def watch(self) -> str:
        """Blocks until `end` was called ('') or the process died (what its log says)."""
        while not self._ended.wait(LOOK_S):
            code = self._server.exit_code()
            if code is not None and not self._ended.is_set():
                return f"rank {self._rank}: {_last_words(self._server)} (exit code {code})"
        return ""

    def end(self) -> None:
        self._ended.set()
        self._server.stop()


def _last_words(server: Server) -> str:
    from runner.engines.diagnose import diagnose

    text = server.log.read_text(encoding="utf-8", errors="replace") if server.log.exists() else ""
    failure = diagnose(text, {"exit_code": server.exit_code(), "process_alive": False}).failure(stage="rank", exit_code=server.exit_code())
    return f"{failure.kind}: {failure.line}" if failure.line else failure.kind


__all__ = ["Follower", "LaunchFailed", "demand_whole", "meeting_point", "rank_job"]
