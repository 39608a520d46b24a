"""One Case an engine: how to make it, an order that serves, and one that is refused (None where there is no such thing).

`attached` and `container` need something to attach to and a runtime: they join the contract in test_attached and test_container."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.engines.base import Engine, LaunchOrder
from runner.engines.gpus import Gpus
from runner.engines.sglang import SglangEngine
from runner.engines.simulated.engine import SimulatedEngine
from runner.spec.engine import EngineSpec
from tests.engines import fake_sglang
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


def sglang_order(folder: Path, **options: object) -> LaunchOrder:
    """An order for a stand-in package, written below `folder`, in this interpreter."""
    site = folder / "site"
    if not site.exists():
        fake_sglang.write(site)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
    order = order_of(folder, options={"enable-metrics": True, **options})
    Path(order.folder).mkdir(parents=True, exist_ok=True)
    engine = EngineSpec(
        kind="sglang", python=sys.executable, extra_python_path=(str(site),), cache_root=str(folder / "caches"), port_range=(24500, 24999)
    )
    model = order.model.model_copy(update={"path": str(folder / "model"), "load_format": "dummy"})
    return order.model_copy(update={"engine": engine, "model": model})


CASES: tuple[Case, ...] = (
    Case(
        name="sglang",
        engine=lambda order: SglangEngine(order.engine, Gpus(None)),
        serving=sglang_order,
        refused=lambda folder: sglang_order(folder, **{"enable-two-batch-overlap": True}),
        sentence="When enabling two batch overlap, moe_a2a_backend cannot be 'none'.",
        exit_code=1,
    ),
    Case(
        name="simulated",
        engine=lambda order: SimulatedEngine(order.engine),
        serving=lambda folder: order_of(folder, options={"enable-metrics": True}),
        refused=lambda folder: order_of(folder, options={"enable-two-batch-overlap": True}),
        sentence="When enabling two batch overlap, moe_a2a_backend cannot be 'none'.",
        exit_code=1,
    ),
)
