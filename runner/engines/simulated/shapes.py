"""What the simulation knows about model and node, as plain dataclasses: the server process starts without pydantic.

Both are made from the JSON of a LaunchOrder (`ModelSpec` and `NodeSpec` dumped), so no field has a second meaning here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

Version = tuple[int, ...]


def version_of(text: str) -> Version:
    """`0.5.13.post1` -> (0, 5, 13, 1); parts that are no number are dropped."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


# Fields of a Model that ModelSpec calls otherwise.
NAMES = {
    "hidden": "hidden_size",
    "layers": "num_layers",
    "active_b": "active_parameters_b",
    "vocab": "vocab_size",
    "special": "special_token_ids",
}


@dataclass(frozen=True)
class Model:
    """`active_b` and `weight_gb` as in ModelSpec: 1e9 parameters read a token, gigabytes of weights over all GPUs."""

    name: str = "model"
    path: str | None = None
    architecture: str = ""
    hidden: int = 1024
    layers: int = 8
    dtype_bytes: int = 2
    all_reduces_per_layer: int = 2
    active_b: float = 1.0
    weight_gb: float = 1.0
    weight_bits: float = 16
    experts: int = 0
    shared_experts: int = 0
    vocab: int = 4096
    special: tuple[int, ...] = (0, 1, 2)
    max_context: int = 32768
    draft_tokens: int = 1

    @staticmethod
    def of(spec: Mapping[str, Any]) -> "Model":
        values: dict[str, Any] = {each.name: spec.get(NAMES.get(each.name, each.name)) for each in fields(Model)}
        values |= {"architecture": values["architecture"] or "", "special": tuple(values["special"])}
        return Model(**values)


@dataclass(frozen=True)
class Node:
    """`all_reduce`: algorithm -> (alpha in us, bus bandwidth in GB/s), as measured or published for this node."""

    name: str = "node"
    gpus: int = 1
    gpu_model: str = ""
    capability: int = 0
    memory_gb: float = 0.0
    link: str = "none"
    link_gb_s: float = 50.0
    all_reduce: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @staticmethod
    def of(spec: Mapping[str, Any]) -> "Node":
        values = {each.name: spec[each.name] for each in fields(Node)}
        return Node(**{**values, "all_reduce": {name: (cost["alpha_us"], cost["gb_s"]) for name, cost in spec["all_reduce"].items()}})

    @property
    def sm120(self) -> bool:
        return 120 <= self.capability < 130

    @property
    def fast_link(self) -> bool:
        """Every pair of GPUs is joined by NVLink."""
        return self.link == "nvlink"
