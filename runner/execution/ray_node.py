"""One node of a Ray cluster: its actor, and the handle that the driver holds. A node may span machines: then it has an actor on each."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from runner.execution.executor import NodeLost
from runner.execution.job import Event, LaunchJob, NodeFacts, NodeOrder
from runner.execution.ranks import Follower, meeting_point, rank_job


class NodeActor:
    """The actor: a NodeWorker that is made on demand, so that its errors arrive as themselves. Several calls run at once: a launch
    blocks one of them."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._follower: Follower | None = None

    def open(self, order: NodeOrder) -> NodeFacts:
        from runner.execution.worker import NodeWorker

        self._worker = NodeWorker(order)
        return self._worker.facts  # type: ignore[no-any-return]

    def topology(self) -> str:
        return str(self._worker.topology())

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        yield from self._worker.launch(job)

    def meeting_point(self, port_range: tuple[int, int]) -> str:
        import ray

        return meeting_point(str(ray.util.get_node_ip_address()), port_range)  # type: ignore[no-untyped-call]

    def follow(self, job: LaunchJob) -> None:
        """Starts the rank that `job` names and returns."""
        self._follower = self._worker.follow(job)

    def watch(self) -> str:
        """See `Follower.watch`."""
        return "" if self._follower is None else self._follower.watch()

    def unfollow(self) -> None:
        if self._follower is not None:
            self._follower.end()
            self._follower = None

    def end_launch(self, launch: str) -> None:
        self._worker.end_launch(launch)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class RayNode:
    """A handle on one node's actors; the first one's machine has rank 0, the load client and the records."""

    def __init__(self, actors: Sequence[Any], group: Any, facts: NodeFacts, name: str) -> None:
        self._actors, self._group, self._facts, self.name = tuple(actors), group, facts, name

    def describe(self) -> NodeFacts:
        return self._facts

    def topology(self) -> str:
        import ray

        with contextlib.suppress(Exception):
            return str(ray.get(self._actors[0].topology.remote(), timeout=60))
        return ""

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        leader, followers = self._actors[0], self._actors[1:]
        try:
            if followers:
                address = ray.get(leader.meeting_point.remote(job.order.engine.port_range))
                ray.get([actor.follow.remote(rank_job(job, rank, address)) for rank, actor in enumerate(followers, 1)])
                job = rank_job(job, 0, address)
            with self._followed(job) as deaths:
                for reference in leader.launch.options(num_returns="streaming").remote(job):
                    event: Event = ray.get(reference)
                    if event.record is not None and deaths:
                        notes = (*event.record.notes, *deaths)
                        event = event.model_copy(update={"record": event.record.model_copy(update={"notes": notes})})
                    yield event
        except RayTaskError as error:
            raise cause(error) from error
        except RayActorError as error:
            raise NodeLost(f"{self.name}: {first_line(error)}") from error

    @contextlib.contextmanager
    def _followed(self, job: LaunchJob) -> Iterator[list[str]]:
        """While it holds, the death of a rank ends rank 0 too, and is told in the list. Afterwards the ranks are ended.
        Raises NodeLost when a whole machine of the node was lost."""
        deaths: list[str] = []
        lost: list[BaseException] = []
        followers = self._actors[1:]
        watchers = [threading.Thread(target=self._watch, args=(actor, job, deaths, lost), daemon=True) for actor in followers]
        for watcher in watchers:
            watcher.start()
        try:
            yield deaths
        finally:
            import ray

            for actor in followers:
                with contextlib.suppress(Exception):
                    ray.get(actor.unfollow.remote(), timeout=60)
            for watcher in watchers:
                watcher.join(timeout=5)
        if lost:
            raise NodeLost(f"{self.name}: a machine of this node was lost: {first_line(lost[0])}") from lost[0]

    def _watch(self, actor: Any, job: LaunchJob, deaths: list[str], lost: list[BaseException]) -> None:
        import ray

        try:
            words = ray.get(actor.watch.remote())
        except Exception as error:  # noqa: BLE001  whatever it is, this rank is gone
            lost.append(error)
            words = first_line(error)
        if words:
            deaths.append(words)
            with contextlib.suppress(Exception):
                ray.get(self._actors[0].end_launch.remote(job.order.launch))

    def close(self) -> None:
        import ray

        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.get(actor.close.remote(), timeout=40)
        self.abort()

    def abort(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        with contextlib.suppress(Exception):
            remove_placement_group(self._group)


def cause(error: Any) -> BaseException:
    found = getattr(error, "cause", None)
    return found if isinstance(found, BaseException) else error


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
