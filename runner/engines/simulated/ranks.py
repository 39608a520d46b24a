"""A simulated server over several machines: the ranks meet at `dist-init-addr`, and each notices when another is gone."""

import os
import select
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from runner.engines.simulated.children import Children
from runner.engines.simulated.log import Log

RETRY_S = 0.05
FOLLOW_S = 0.1


class Meeting:
    """What holds the ranks together. `rank` 0 with `count` 1 is an ordinary server and meets nobody."""

    def __init__(self, ranks: Mapping[str, Any] | None) -> None:
        self.rank = int(ranks["rank"]) if ranks else 0
        self.count = int(ranks["count"]) if ranks else 1
        host, _, port = str(ranks["address"]).rpartition(":") if ranks else ("", "", "0")
        self._place = (host, int(port))
        self.peers: list[socket.socket] = []

    def meet(self, pause: Callable[[float], None]) -> None:
        """Blocks until all ranks are there; `pause` sleeps and ends the process when a child has died. It waits without a limit: the
        deadlines are the runner's."""
        if self.count == 1:
            return
        if self.rank == 0:
            self._gather(pause)
        else:
            self._join(pause)

    def _gather(self, pause: Callable[[float], None]) -> None:
        with socket.create_server(self._place) as listener:
            listener.setblocking(False)
            while len(self.peers) < self.count - 1:
                try:
                    peer, _ = listener.accept()
                    self.peers.append(peer)
                except BlockingIOError:
                    pause(RETRY_S)

    def _join(self, pause: Callable[[float], None]) -> None:
        while not self.peers:
            try:
                self.peers.append(socket.create_connection(self._place, timeout=5))
            except OSError:
                pause(RETRY_S)


def follow(meeting: Meeting, children: Children, log: Log) -> NoReturn:
    """The life of a rank above 0 once it has started: it serves its share until rank 0 or one of its own schedulers is gone."""
    log.line(f"Dummy health check server scheduled on node rank {meeting.rank}.")
    code = 0
    while True:
        readable, _, _ = select.select(meeting.peers, [], [], FOLLOW_S)
        if readable:
            break  # rank 0 says nothing: this is its end
        gone = [name for name, _, _ in children.poll() if name.startswith("scheduler")]
        if gone:
            log.line(f"{gone[0]} died; rank {meeting.rank} ends.")
            code = 1
            break
    children.kill()
    os._exit(code)
