"""`python -m runner.engines.simulated --order ORDER.json --port P`: one simulated SGLang server. ORDER.json is a LaunchOrder."""

import argparse
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

from runner.engines.simulated.children import Children
from runner.engines.simulated.failures import RUN, Death, last_line
from runner.engines.simulated.http import Listener
from runner.engines.simulated.launch import Launch, launch_of
from runner.engines.simulated.log import Log
from runner.engines.simulated.loop import Loop
from runner.engines.simulated.options import Refused
from runner.engines.simulated.ranks import follow
from runner.engines.simulated.routes import Routes
from runner.engines.simulated.service import Service
from runner.engines.simulated.startup import Startup

HOST = "127.0.0.1"


class Signals:
    """Signals become events of the loop; what they do depends on version and faults."""

    def __init__(self, service: Service, launch: Launch) -> None:
        self._service = service
        self._launch = launch
        self._stopping = False
        self._read, write = socket.socketpair()
        self._read.setblocking(False)
        write.setblocking(False)
        self._write = write
        signal.set_wakeup_fd(write.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, _nothing)
        service.loop.watch(self._read.fileno(), select.EPOLLIN, self._arrived)

    def _arrived(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._read.recv(64):
                self._one(number)

    def _one(self, number: int) -> None:
        log, launch = self._service.log, self._launch
        if number == signal.SIGQUIT:
            log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            Death(log, self._service.children, launch.version).by_kill()
        if launch.fault("ignore_sigterm") is not None or self._stopping:
            return
        self._stopping = True
        if launch.version >= (0, 5, 14):
            log.line("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        slow = launch.fault("slow_stop")
        self._service.loop.after((slow.value or 8.0) if slow else 0.05, self._drain)

    def _drain(self) -> None:
        """Waits for the open requests, without a limit, as the real one does."""
        service = self._service
        left = len(service.jobs)
        text = f"Gracefully exiting... Remaining number of requests {left}."
        if self._launch.version >= (0, 5, 14):
            text += f" Remaining requests remaining_rids={list(service.jobs)}."
        service.log.line(text)
        if left:
            service.loop.after(0.2, self._drain)
            return
        Death(service.log, service.children, self._launch.version).clean()


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor says it already."""


def serve(launch: Launch, log: Log, port: int, startup: Startup, children: Children) -> None:
    """Opens the port, warms up, serves until a signal or a fault ends the process."""
    loop = Loop()
    service = Service(launch, log, loop, children)
    routes = Routes(service, port, startup.seconds)
    log.line(f"INFO:     Started server process [{os.getpid()}]")
    log.line("INFO:     Waiting for application startup.")
    log.line("INFO:     Application startup complete.")
    try:
        if launch.fault("port_taken") is not None:
            raise OSError(98, "address already in use")
        listener = Listener(loop, HOST, port, routes.handle)
    except OSError as error:
        _bind_failed(error, launch, log, port, children)
        return
    Signals(service, launch)
    for peer in startup.meeting.peers:
        loop.watch(peer.fileno(), select.EPOLLIN, lambda _events: _rank_gone(launch, log, children))
    log.line(f"INFO:     Uvicorn running on http://{HOST}:{port} (Press CTRL+C to quit)")

    def ready() -> None:
        startup.strike("warmup")
        if any(name.startswith("scheduler") for name, _, _ in children.poll()):
            return  # the warm-up request waits for an answer that cannot come
        label = "cuda graph" if launch.node.capability else "cpu graph"
        log.access(f"{HOST}:48452", "GET", "/model_info", 200, "OK")
        log.line(
            "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, "
            f"#pending-token: 0, {label}: False, input throughput (token/s): 1.14",
            0,
        )
        log.access(f"{HOST}:48454", "POST", "/generate", 200, "OK")
        log.line("The server is fired up and ready to roll!")
        service.ready = True
        service.begin()

    loop.after(startup.load_s * startup.share["warmup"], ready)
    # everything that lives now lives until the end: keep the collector from walking it while passes run
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        loop.run()
    finally:
        listener.close()


def _rank_gone(launch: Launch, log: Log, children: Children) -> None:
    """Another machine's rank ended: the next collective fails."""
    last = last_line("nccl_error", "load", launch.node.memory_gb or 20.0)
    Death(log, children, launch.version).by_scheduler(RUN, last, running=True)


def _bind_failed(error: OSError, launch: Launch, log: Log, port: int, children: Children) -> None:
    """The real one finds out after the whole load, and its warm-up still calls the other server's port a success."""
    log.line(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ('{HOST}', {port}): address already in use")
    log.line("INFO:     Waiting for application shutdown.")
    log.line("The server is fired up and ready to roll!")
    log.line("INFO:     Application shutdown complete.")
    log.line(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
    children.kill()
    sys.stdout.flush()
    os._exit(3 if launch.version >= (0, 5, 20) else 1)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.engines.simulated", description=__doc__)
    parser.add_argument("--order", required=True, help="a LaunchOrder as JSON")
    parser.add_argument("--port", required=True, type=int)
    given = parser.parse_args(words)
    order = json.loads(Path(given.order).read_text(encoding="utf-8"))
    try:
        launch = launch_of(order)
    except Refused as refused:
        sys.stderr.write(refused.text + "\n")
        return 2
    log = Log(launch.tp, debug=launch.args.get("log_level") in ("debug", "trace"))
    log.raw(f"SIMULATED engine: no SGLang runs here; it plays version {launch.version_text}\n")
    startup = Startup(launch, log, given.port)
    children = startup.run()
    if startup.meeting.rank:
        follow(startup.meeting, children, log)
    serve(launch, log, given.port, startup, children)
    return 0


if __name__ == "__main__":
    sys.exit(main())
