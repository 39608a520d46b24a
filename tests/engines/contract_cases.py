"""One Case an engine: how to make it, an order that serves, and one that is refused (None where there is no such thing)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.engines.base import Engine, LaunchOrder
from runner.engines.simulated.engine import SimulatedEngine
from tests.engines.simulated.support import order_of


@dataclass(frozen=True)
class Case:
    """`owns`: the engine starts and ends a process of its own (an attached one does not). `sentence`: of the refused order."""

    name: str
    engine: Callable[[LaunchOrder], Engine]
    serving: Callable[[Path], LaunchOrder]
    refused: Callable[[Path], LaunchOrder] | None = None
    sentence: str = ""
    exit_code: int | None = None
    owns: bool = True


CASES: tuple[Case, ...] = (
    Case(
        name="simulated",
        engine=lambda order: SimulatedEngine(order.engine),
        serving=lambda folder: order_of(folder, options={"enable-metrics": True}),
        refused=lambda folder: order_of(folder, options={"enable-two-batch-overlap": True}),
        sentence="When enabling two batch overlap, moe_a2a_backend cannot be 'none'.",
        exit_code=1,
    ),
)
