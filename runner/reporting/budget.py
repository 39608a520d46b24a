"""The communication budget beside what was measured: an upper bound that a pure communication flag cannot pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runner.analysis.communication import budget
from runner.engines.probing.stored import NodeProbe, stored_probe
from runner.errors import UserError
from runner.records import words
from runner.records.decision import Decision
from runner.records.files import read_json
from runner.records.paths import RootPaths, StudyPaths
from runner.records.schema import LaunchRecord
from runner.spec.model import ModelSpec
from runner.spec.node import LinkCost, NodeSpec
from runner.spec.workload import PhaseSpec


@dataclass(frozen=True)
class BudgetSection:
    """`rows` share their keys, which are the table's heads; `findings` are sentences: bound against measured effect, by phase."""

    rows: tuple[dict[str, str], ...]
    note: str
    findings: tuple[str, ...] = ()


def budget_section(study: StudyPaths, decision: Decision, launches: Sequence[LaunchRecord]) -> BudgetSection | None:
    """None where the study's configuration (node, model, workload) is not beside its records."""
    try:
        config = read_json(study.config)
        node, model = NodeSpec.model_validate(config["node"]), ModelSpec.model_validate(config["model"])
        options = {**config.get("engine", {}).get("options", {}), **model.options, **config.get("pins", {})}
        phases = {name: PhaseSpec.model_validate(spec) for name, spec in config["workload"]["phases"].items()}
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None
    if _ranks(options, node) < 2:
        return BudgetSection(
            rows=(), note="", findings=("One GPU serves: no all-reduce is made, so no communication flag can matter here.",)
        )
    baseline = next((arm for arm in decision.arms if arm.name == decision.baseline), None)
    values = baseline.values if baseline else {}
    rows = {name: phases[name].concurrency * model.draft_tokens for name in values if name in phases and phases[name].kind == "decode"}
    measured = {name: values[name]["tpot_p50_ms"] for name in rows if "tpot_p50_ms" in values[name]}
    costs = None if words.is_simulated(decision) else _probed(study, node.name)
    result = budget(model, node, rows, ranks=_ranks(options, node), pass_ms=measured, measured=costs)
    known = ", ".join(f"{name}: {source or 'source not given'}" for name, source in result["sources"].items())
    note = f"{result['all_reduces_per_pass']} all-reduces a pass, {result['ranks']} ranks, link {result['link_gb_s']:g} GB/s"
    return BudgetSection(
        rows=tuple(_row(row) for row in result["rows"]),
        note=f"{note}; costs: {known or 'bandwidth only, no latency known'}",
        findings=tuple(_finding(phase, decision) for phase in result["phases"]),
    )


def _ranks(options: Mapping[str, Any], node: NodeSpec) -> int:
    """Tensor-parallel size: as the options say, else every GPU of the node."""
    given = next((options[name] for name in ("tp-size", "tp", "tensor-parallel-size") if options.get(name) is not None), None)
    return int(given) if given is not None else max(node.gpus, 1)


def _probed(study: StudyPaths, node: str) -> dict[str, LinkCost] | None:
    """The node's probe as it was when the study began, else the one of now."""
    try:
        if study.probe.is_file():
            return NodeProbe.model_validate(read_json(study.probe)).costs()
        probe = stored_probe(RootPaths(study.folder.parent.parent), node)
    except (UserError, ValueError):
        return None
    return None if probe is None else probe.costs()


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    share = row["share_of_tpot"]
    return {
        "tokens": str(row["tokens"]),
        "bytes": f"{row['bytes']:,}",
        "algorithm": str(row["algorithm"]),
        "us": words.number(row["us"]),
        "ms a pass": words.number(row["ms_per_pass"]),
        "share of TPOT": "-" if share is None else f"{100 * share:.1f} %",
    }


def _finding(phase: Mapping[str, Any], decision: Decision) -> str:
    """The bound of a phase against the largest TPOT effect that was measured in it."""
    name, bound = phase["phase"], phase["bound_pct"]
    effects = [
        (item.effect_pct, arm.name)
        for arm in decision.arms
        if (item := words.find(arm, name, "tpot_p50_ms")) is not None and item.effect_pct is not None
    ]
    largest = max(effects, default=None)
    if bound is None:
        return f"{name}: no bound; {'no cost of an all-reduce is known for this node' if phase['pass_ms'] else 'TPOT was not measured'}."
    text = f"{name}: communication through {phase['algorithm']} is at most {bound:.1f} % of TPOT ({words.number(phase['pass_ms'])} ms)"
    if largest is None:
        return f"{text}; no effect was measured."
    text += f"; the largest measured effect is {words.signed(largest[0])} % ({largest[1]})"
    if largest[0] > bound:
        text += ", more than the bound: that arm does more than communicate, or the assumed cost is not this node's"
    return f"{text}."
