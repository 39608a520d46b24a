"""What goes wrong while a node is opened reaches whoever waits for it, whatever it is."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.execution.job import NodeOrder
from runner.execution.ray_executor import RayExecutor


@pytest.mark.parametrize("failure", [ModuleNotFoundError("no module named x"), OSError(28, "No space left on device")])
def test_a_failure_that_nobody_foresaw_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    machine = {"Alive": True, "Resources": {"GPU": 8}, "NodeManagerAddress": "a"}
    executor = object.__new__(RayExecutor)
    executor._gpus, executor._machines, executor._nodes = 8, 1, []

    def fails(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(RayExecutor, "_cluster", lambda self: SimpleNamespace(nodes=lambda: [machine]))
    monkeypatch.setattr(RayExecutor, "_open_one", fails)
    with pytest.raises(type(failure)) as raised:
        executor.open(cast(NodeOrder, SimpleNamespace(node=SimpleNamespace(name="n"))), nodes=None)
    assert raised.value is failure
