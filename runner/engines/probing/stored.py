"""`nodes/<node>/probe.json`: what `action=probe` measured on a node, validated whenever it is read."""

from pathlib import Path

from pydantic import Field, ValidationError

from runner.errors import UserError
from runner.records.files import read_json
from runner.records.paths import RootPaths, safe_name
from runner.spec.base import Strict
from runner.spec.node import LinkCost


class Point(Strict):
    """One message size. `us`: median time of one all-reduce, the slowest rank's, microseconds, one value a round."""

    bytes: int = Field(gt=0)
    us: tuple[float, ...]


class Algorithm(Strict):
    """One way of doing an all-reduce: the measured points, the fitted line, and how far each point lies from it."""

    points: tuple[Point, ...]
    fit: LinkCost
    residual_pct: tuple[float, ...] = Field(default=(), description="(measured median - fit) / measured, percent, one a point")
    calls: int = Field(default=1, description="all-reduces between two looks at the clock, at most")


class NodeProbe(Strict):
    """All-reduce latency of one node, as measured there."""

    schema_version: int = Field(default=1, alias="schema")
    node: str
    host: str
    at: float = Field(description="Unix seconds")
    backend: str
    ranks: int
    python: str
    torch: str
    engine: str | None = Field(default=None, description="SGLang's version in that interpreter, where there is one")
    library: str | None = Field(default=None, description="NCCL's version")
    devices: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, description="variables that every process got and that matter to the result")
    algorithms: dict[str, Algorithm]
    notes: dict[str, str] = Field(default_factory=dict, description="ways that could not be measured, and why")

    def costs(self) -> dict[str, LinkCost]:
        return {name: algorithm.fit for name, algorithm in self.algorithms.items()}


def probe_path(root: RootPaths, node: str) -> Path:
    return root.nodes / safe_name(node) / "probe.json"


def stored_probe(root: RootPaths, node: str) -> NodeProbe | None:
    """The node's probe, or None. Raises UserError when the file is damaged."""
    path = probe_path(root, node)
    if not path.is_file():
        return None
    try:
        return NodeProbe.model_validate(read_json(path))
    except (ValidationError, ValueError) as error:
        raise UserError(f"{path} is no probe of a node ({type(error).__name__}); measure again with action=probe, or remove it") from None
