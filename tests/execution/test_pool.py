"""Nodes of different kinds never work on one study."""

from runner.execution.job import NodeFacts
from runner.execution.pool import alike
from tests.execution.fakes import FakeNode


class Machine(FakeNode):
    def __init__(self, name: str, **facts: object) -> None:
        super().__init__(name)
        self._facts = super().describe().model_copy(update=facts)

    def describe(self) -> NodeFacts:
        return self._facts


def test_the_largest_set_of_one_kind_is_kept_and_the_others_are_told_why() -> None:
    small = Machine("a", gpu_models=("L4",) * 8, driver="570")
    large = [Machine(name, gpu_models=("H200",) * 8, driver="570") for name in ("b", "c")]
    kept, others = alike([small, *large])
    assert [node.name for node in kept] == ["b", "c"]
    assert [(node.name, "GPUs L4" in how and "H200" in how) for node, how in others] == [("a", True)]


def test_another_driver_or_build_is_another_kind_another_host_is_not() -> None:
    first = Machine("a", driver="570", gpu_models=("H200",))
    assert alike([first, Machine("b", driver="575", gpu_models=("H200",))])[0] == [first]
    build = first.describe().engine.model_copy(update={"build": "other"})
    assert alike([first, Machine("b", driver="570", gpu_models=("H200",), engine=build)])[0] == [first]
    assert len(alike([first, Machine("b", driver="570", gpu_models=("H200",), host="elsewhere", boot_id="x")])[0]) == 2


def test_of_two_equally_large_sets_the_first_is_kept() -> None:
    first, second = Machine("a", driver="1"), Machine("b", driver="2")
    assert alike([first, second])[0] == [first]
    assert alike([]) == ([], [])
