"""From `engine=...` to an engine. `auto` never falls back: GPUs without an engine are an error, not a simulation."""

import sys
from dataclasses import dataclass
from typing import Literal

from runner.engines.base import Engine
from runner.errors import UserError
from runner.spec.engine import EngineSpec
from runner.spec.node import NodeSpec

Kind = Literal["sglang", "container", "simulated", "attached"]


@dataclass(frozen=True)
class Choice:
    """Which engine, and why: said in the first line of a study."""

    kind: Kind
    reason: str


def resolve_kind(spec: EngineSpec) -> Choice:
    """What `auto` means on this machine (design, section 3). Raises UserError where GPUs are visible but no engine is, and
    where `engine.python` has none."""
    if spec.kind != "auto":
        return Choice(spec.kind, f"engine={spec.kind}")
    from runner.engines.gpus import visible_count

    count = visible_count()
    if count == 0 and spec.python is not None:
        _is_an_engine(spec)
    if count == 0:
        return Choice("simulated", "no GPU is visible here: the engine is SIMULATED")
    from runner.engines.environment import base_environment, python_path
    from runner.engines.identity import has_sglang

    python = spec.python or sys.executable
    if has_sglang(python, base_environment() | python_path(None, spec.extra_python_path)):
        return Choice("sglang", f"{count} GPUs are visible and {python} has sglang")
    raise UserError(
        f"{count} GPUs are visible, but {python} has no sglang. Name the interpreter of the engine's environment with "
        f"engine.python=/path/to/venv/bin/python, or say engine=simulated (nothing is measured then)"
    )


def _is_an_engine(spec: EngineSpec) -> None:
    """An interpreter that a person names must have sglang, also where nothing but a simulation can follow. Raises UserError."""
    from runner.engines.environment import base_environment, python_path
    from runner.engines.identity import identify_sglang

    assert spec.python is not None
    identify_sglang(spec.python, base_environment() | python_path(None, spec.extra_python_path))


def choose_engine(spec: EngineSpec, node: NodeSpec) -> Engine:
    """The engine that `spec` asks for on this machine. `node` describes it to the simulated engine. Raises UserError."""
    kind = resolve_kind(spec).kind
    if kind == "simulated":
        from runner.engines.simulated.engine import SimulatedEngine

        return SimulatedEngine(spec)
    if kind == "container":
        from runner.engines.container import ContainerEngine

        return ContainerEngine(spec)
    if kind == "attached":
        from runner.engines.attached import AttachedEngine

        return AttachedEngine(spec)
    from runner.engines.sglang import SglangEngine

    return SglangEngine(spec)
