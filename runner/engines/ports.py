"""Ports of a server: free before the launch, outside the range the kernel hands out by itself, and owned by our tree after.

A server that loses its port loads for minutes, fails to bind, and still logs that it is ready, because its warm-up reached the
old server: so both ends are checked. Who listens is read from /proc/net/tcp (inode) and /proc/<pid>/fd.
"""

import errno
import random
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.engines import process
from runner.errors import UserError

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"


def ephemeral_range() -> tuple[int, int]:
    """The kernel's own range for outgoing connections (net.ipv4.ip_local_port_range), both ends included."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """True when a server could bind here now. The bind is made as servers make it (SO_REUSEADDR: a connection in TIME_WAIT does
    not count) and again on all addresses, where somebody may listen for everybody; there nothing listens, not even for a moment."""
    for address in dict.fromkeys((host, "0.0.0.0")):  # noqa: S104
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                if address == host:
                    probe.listen(1)
            except OSError as failed:
                if failed.errno in (errno.EADDRINUSE, errno.EACCES):
                    return False
                raise
    return True


def pick_ports(port_range: tuple[int, int], count: int = 1, companions: Sequence[int] = (), seed: int | None = None) -> list[int]:
    """`count` free ports of the range, outside the ephemeral range. For the first one, the ports at the offsets `companions`
    must be free too (SGLang with data-parallel attention uses port + 233 and on). Raises UserError when there are not enough."""
    low, high = port_range
    if not 1024 <= low <= high <= 65535:
        raise UserError(f"engine.port_range={list(port_range)} is no range of ports: two numbers, the lower first, from 1024 to 65535")
    first, last = ephemeral_range()
    candidates = [port for port in range(low, high + 1) if not first <= port <= last]
    if not candidates:
        raise UserError(
            f"engine.port_range={low}-{high} lies inside the range that the kernel hands out by itself ({first}-{last}); "
            f"a port from there can be taken at any moment. Choose one outside, such as 21000-21999"
        )
    random.Random(seed).shuffle(candidates)
    chosen: list[int] = []
    for port in candidates:
        offsets = companions if not chosen else ()
        around = [port, *(port + offset for offset in offsets)]
        if all(each <= 65535 and each not in chosen and is_free(each) for each in around):
            chosen += [port]
            if len(chosen) == count:
                return chosen
    raise UserError(f"engine.port_range={low}-{high} has fewer than {count} free ports; widen it or end what listens there")


def listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on this port, IPv4 and IPv6."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return inodes


def holders(inodes: Collection[str], pids: Iterable[int]) -> list[int]:
    """Those of `pids` that hold one of these sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for pid in pids:
        try:
            entries = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for entry in entries:
            try:
                if str(entry.readlink()) in wanted:
                    found.append(pid)
                    break
            except OSError:
                continue
    return found


@dataclass(frozen=True)
class PortOwner:
    """Who listens. `unknown`: somebody does, but its descriptors may not be read (another user, a container)."""

    who: Literal["ours", "foreign", "nobody", "unknown"]
    pids: tuple[int, ...] = ()

    def __str__(self) -> str:
        names = [f"pid {pid} ({process.command_line(pid)[:120] or 'unnamed'})" for pid in self.pids]
        return ", ".join(names) or {"nobody": "nobody", "unknown": "a process of another user"}.get(self.who, self.who)


def owner_of(port: int, ours: Collection[int]) -> PortOwner:
    """Who listens on `port`, where `ours` are the pids of our own tree."""
    inodes = listening_inodes(port)
    if not inodes:
        return PortOwner("nobody")
    mine = holders(inodes, ours)
    if mine:
        return PortOwner("ours", tuple(mine))
    others = holders(inodes, [seen.pid for seen in process.everything() if seen.live])
    return PortOwner("foreign", tuple(others)) if others else PortOwner("unknown")


def demand_free(port: int) -> None:
    """Raises UserError that names who listens on a port that the user asked for."""
    if not is_free(port):
        raise UserError(
            f"port {port} is taken by {owner_of(port, ())}; leave engine.options.port out (a free port of engine.port_range is "
            f"chosen) or end that process"
        )
