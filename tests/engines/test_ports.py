"""Ports are free before, outside the kernel's range, and owned by the right tree after."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from runner.engines import ports
from runner.errors import UserError
from tests.engines.owned_programs import until

LISTEN = (
    "import socket, sys, time\ns = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print('on', flush=True); time.sleep(60)"
)


@pytest.fixture
def port() -> int:
    return ports.pick_ports((22300, 22999))[0]


@pytest.fixture
def listener(port: int) -> Iterator[int]:
    """Pid of another process that listens on `port`."""
    started = subprocess.Popen([sys.executable, "-c", LISTEN, "127.0.0.1", str(port)], stdout=subprocess.PIPE)
    assert started.stdout is not None and started.stdout.readline()
    yield started.pid
    started.kill()
    started.wait()


def test_picks_outside_the_ephemeral_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "ephemeral_range", lambda: (22400, 60000))
    assert all(22300 <= port < 22400 for port in ports.pick_ports((22300, 30000), 20))
    with pytest.raises(UserError, match=r"22500-22600 lies inside the range .*22400-60000"):
        ports.pick_ports((22500, 22600))


def test_ephemeral_range_is_the_kernels() -> None:
    low, high = ports.ephemeral_range()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert low <= probe.getsockname()[1] <= high


def test_taken_ports_are_not_picked(port: int, listener: int) -> None:
    assert not ports.is_free(port)
    with pytest.raises(UserError, match=f"{port}-{port} has fewer than 1 free"):
        ports.pick_ports((port, port))


def test_companions_must_be_free_too(port: int, listener: int) -> None:
    with pytest.raises(UserError):
        ports.pick_ports((port - 233, port - 233), companions=(233,))


def test_somebody_on_all_addresses_counts(port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", port))
        taken.listen()
        assert not ports.is_free(port)


def test_a_closed_connection_does_not_keep_a_port(port: int) -> None:
    """TIME_WAIT of a server that just ended is no reason to refuse."""
    server = socket.create_server(("127.0.0.1", port))
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    accepted.close()
    client.close()
    server.close()
    assert ports.is_free(port)


def test_owner(port: int, listener: int) -> None:
    assert ports.owner_of(port, [listener]) == ports.PortOwner("ours", (listener,))
    foreign = ports.owner_of(port, [os.getpid()])
    assert foreign.who == "foreign" and foreign.pids == (listener,) and f"pid {listener} (" in str(foreign)
    with pytest.raises(UserError, match=rf"port {port} is taken by pid {listener}"):
        ports.demand_free(port)


def test_nobody(port: int) -> None:
    assert ports.owner_of(port, [os.getpid()]).who == "nobody"
    ports.demand_free(port)


def test_a_connection_is_no_listener(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
        accepted, _ = server.accept()
        with accepted:
            assert len(ports.listening_inodes(port)) == 1
    assert until(lambda: not ports.listening_inodes(port))


@pytest.mark.parametrize("bad", [(80, 90), (23000, 22000), (60000, 70000)])
def test_nonsense_ranges_are_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="is no range of ports"):
        ports.pick_ports(bad)
