"""Which nodes may work on one study: nodes that differ in engine, driver or GPUs are never pooled."""

from collections.abc import Sequence

from runner.execution.executor import NodeHandle
from runner.execution.job import NodeFacts

Kind = tuple[tuple[str, str], ...]


def kind_of(facts: NodeFacts) -> Kind:
    """(what, value) of everything that makes two machines the same kind of node. The speed of one machine is not among it: a block
    stays on one node, so that cancels out."""
    models = ", ".join(sorted(facts.gpu_models))
    return (("engine", f"{facts.engine.kind} {facts.engine.build}"), ("driver", facts.driver or "none"), ("GPUs", models or "none"))


def alike(nodes: Sequence[NodeHandle]) -> tuple[list[NodeHandle], list[tuple[NodeHandle, str]]]:
    """The largest set of nodes of one kind (of two equally large ones, the first), and the others, each with how it differs."""
    kinds = [kind_of(node.describe()) for node in nodes]
    if not kinds:
        return [], []
    chosen = max(dict.fromkeys(kinds), key=kinds.count)
    kept = [node for node, kind in zip(nodes, kinds, strict=True) if kind == chosen]
    others = [(node, difference(kind, chosen)) for node, kind in zip(nodes, kinds, strict=True) if kind != chosen]
    return kept, others


def difference(kind: Kind, chosen: Kind) -> str:
    """In words: what of `kind` is not as in `chosen`."""
    return "; ".join(f"{what} {mine}, not {theirs}" for (what, mine), (_, theirs) in zip(kind, chosen, strict=True) if mine != theirs)
