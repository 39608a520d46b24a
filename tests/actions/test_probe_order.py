"""Which probe a node gets; that a CPU never stands in for GPUs."""

from pathlib import Path

import pytest

from runner.actions.probe import measured, order_for
from runner.engines.locks import NodeLock
from runner.errors import NodeBusy, UserError
from tests.actions.example import settings_of


def test_backends(tmp_path: Path) -> None:
    eight = settings_of(tmp_path).node
    assert (order_for(eight, 8).backend, order_for(eight, 8).ranks) == ("nccl", 8)
    cpu = order_for(eight.model_copy(update={"gpus": 0}), 0)
    assert (cpu.backend, cpu.ranks) == ("gloo", 2)
    assert (cpu.sizes[0], cpu.sizes[-1]) == (4096, 64 << 20)


def test_a_node_that_is_not_this_machine_is_refused(tmp_path: Path) -> None:
    eight = settings_of(tmp_path).node
    with pytest.raises(UserError, match="8 GPUs, but 0 are visible"):
        order_for(eight, 0)
    with pytest.raises(UserError, match="nothing to reduce over"):
        order_for(eight.model_copy(update={"gpus": 1}), 1)


def test_an_interpreter_on_this_machine_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"engine\.python"):
        measured(settings_of(tmp_path))
    with pytest.raises(UserError, match="container"):
        measured(settings_of(tmp_path, engine={"kind": "container"}))


def test_a_busy_node_is_not_measured(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, node={"gpus": 0}, engine={"python": "/usr/bin/env"}, execution={"lock_dir": str(tmp_path / "lock")})
    lock = NodeLock(tmp_path / "lock")
    lock.acquire(study="other")
    try:
        with pytest.raises(NodeBusy, match="other"):
            measured(settings)
    finally:
        lock.release()
