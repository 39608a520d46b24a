"""The node worker: holds one node (lock, guard, load driver) and makes launches on it one after another.

The same class runs in this process (inline) or as a Ray actor; it knows of neither."""

import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from runner.engines.base import Engine
from runner.engines.container import ContainerEngine
from runner.engines.environment import base_environment, cache_home, python_path
from runner.engines.gpus import Gpus
from runner.engines.guard import GuardBroken, GuardedOwner
from runner.engines.ledger import Ledger
from runner.engines.locks import NodeLock, default_lock_folder
from runner.engines.registry import choose_engine
from runner.engines.topology import read_matrix
from runner.errors import NotFinished
from runner.execution.job import Event, LaunchJob, NodeFacts, NodeOrder
from runner.execution.launch import run_launch
from runner.execution.ranks import Follower
from runner.execution.treatment import Overlays
from runner.loadgen.base import ClientBroken
from runner.loadgen.driver import ProcessDriver
from runner.records.clock import SteadyClock


def boot_id() -> str:
    """Changes at every boot of the machine; '' where /proc does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class NodeWorker:
    """Owns everything that runs on one node for one study. `close` ends all of it; the guard does so when we die."""

    def __init__(self, order: NodeOrder) -> None:
        """Raises NodeBusy when another study holds the node, UserError when there is no engine."""
        self._order = order
        self._clock = SteadyClock(not_before=order.not_before)
        folder = Path(order.lock_dir) if order.lock_dir else default_lock_folder()
        self._lock = NodeLock(folder)
        self._lock.acquire(order.busy_wait_s, study=order.study)
        self._owner: GuardedOwner | None = None
        self._load: ProcessDriver | None = None
        try:
            self._engine: Engine = choose_engine(order.engine, order.node)
            self._equip(Ledger(folder / "ledger.jsonl", study=order.study))
            self.facts = self._find_facts()
            self._overlays = self._find_overlays()
        except BaseException:
            self.close()
            raise

    def _equip(self, ledger: Ledger) -> None:
        """Guard and first load worker. One that was killed at birth is started once more. Raises NotFinished."""
        for attempt in (1, 2):
            try:
                self._owner = GuardedOwner(ledger, lock_fd=self._lock.fd)
                self._load = ProcessDriver(self._owner.spawn)
                return
            except (GuardBroken, ClientBroken) as broken:
                if self._owner is not None:
                    self._owner.close()
                    self._owner = None
                if attempt == 2:
                    raise NotFinished(f"the node's own processes do not start: {broken}; start the same command again") from broken

    def _find_facts(self) -> NodeFacts:
        identity = self._engine.identify()
        gpus = Gpus.visible()
        probe: dict[str, object] = {}
        if identity.kind == "sglang" and identity.python:
            from runner.engines.evidence.probe import run_probe

            probe = run_probe(identity.python, base_environment() | python_path(None, self._order.engine.extra_python_path))
        if isinstance(self._engine, ContainerEngine):
            probe = self._engine.probe(gpus)
        if identity.kind == "simulated":
            from runner.engines.simulated.resolve import probe_simulated

            probe = probe_simulated(self._order.engine, self._order.node)
        return NodeFacts(
            host=socket.gethostname(),
            boot_id=boot_id(),
            engine=identity,
            gpus=gpus.uuids,
            gpu_models=tuple(device.name for device in gpus.devices),
            driver=gpus.driver_version(),
            probe=probe,
        )

    def _find_overlays(self) -> Overlays | None:
        """Only an engine of its own interpreter can be patched, here or in an image; the simulated one plays its patches."""
        engine, python, spec = self.facts.engine, self.facts.engine.python, self._order.engine
        if engine.kind not in ("sglang", "container") or python is None:
            return None
        home = cache_home(spec.cache_root)
        overlays = Overlays(home / "overlays" / engine.build[:16], python, spec.extra_python_path)
        if isinstance(self._engine, ContainerEngine):
            overlays.packages = self._engine.packages
        return overlays

    def describe(self) -> NodeFacts:
        return self.facts

    def topology(self) -> str:
        return read_matrix() or ""

    def launch(self, job: LaunchJob) -> Iterator[Event]:
        """Yields events while the launch runs; the last one carries the record. Raises ClientBroken."""
        assert self._owner is not None and self._load is not None
        events: queue.Queue[Event | BaseException] = queue.Queue()
        owner, load = self._owner, self._load

        def work() -> None:
            try:
                record = run_launch(job, self._engine, owner, load, self.facts, events.put, self._overlays, self._clock)
                events.put(Event(kind="launch", launch=job.order.launch, record=record))
            except BaseException as error:  # noqa: BLE001  handed to the consumer, who raises it
                events.put(error)

        thread = threading.Thread(target=work, name=f"launch-{job.order.launch}", daemon=True)
        thread.start()
        while True:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if event.kind == "launch":
                thread.join(timeout=5)
                return

    def follow(self, job: LaunchJob) -> Follower:
        """Starts this machine's rank of a server that spans machines. Raises LaunchFailed, UserError, NodeBusy."""
        assert self._owner is not None
        order = job.order
        Path(order.folder).mkdir(parents=True, exist_ok=True)
        overlay = self._overlays.of(order) if self._overlays is not None and order.patches else None
        if overlay is not None:
            order = order.model_copy(update={"overlay": overlay.path})
        return Follower(self._engine.start(order, self._owner), order)

    def end_launch(self, launch: str) -> None:
        """Ends the server of this launch at once; whoever waits for it hears that it died."""
        if self._owner is not None:
            self._owner.end_launch(launch)

    def close(self) -> None:
        """Ends servers, load driver and guard, then frees the node. Idempotent."""
        if self._load is not None:
            self._load.close()
            self._load = None
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        self._lock.release()
