"""`action=budget [json=true]`: what communication costs a forward pass, and the most a communication flag can gain."""

import json
from typing import Any

from runner.actions.ground import root_of
from runner.analysis.communication import budget, budget_text
from runner.config import Settings
from runner.engines.probing.stored import stored_probe
from runner.errors import UserError, choices
from runner.planning.pins import option_value
from runner.records.files import read_json
from runner.records.paths import RootPaths
from runner.spec.workload import PhaseSpec


def perform(settings: Settings, overrides: list[str]) -> int:
    result = node_budget(settings)
    print(json.dumps(result) if settings.json_output else budget_text(result) + "\n" + provenance(result))
    return 0


def node_budget(settings: Settings) -> dict[str, Any]:
    """The budget of these settings as one JSON-able object. Reads the node's probe and its newest real study; starts nothing.

    Raises UserError for an unknown phase."""
    unknown = [name for name in settings.phases if name not in settings.workload.phases]
    if unknown:
        raise UserError(
            f"workload {settings.workload.name} has no phase {', '.join(unknown)}; choices: {choices(settings.workload.phases)}"
        )
    root = root_of(settings)
    options = {**settings.engine.options, **settings.model.options, **settings.pins}
    chunk = int(option_value(options, "chunked-prefill-size") or 8192)
    phases = {name: settings.workload.phases[name] for name in settings.phases or settings.workload.phases}
    rows = {name: rows_of_pass(phase, settings.model.draft_tokens, chunk) for name, phase in phases.items()}
    times, study = measured_tpot(root, settings, [name for name, phase in phases.items() if phase.kind == "decode"])
    probe = stored_probe(root, settings.node.name)
    result = budget(
        settings.model,
        settings.node,
        rows,
        ranks=ranks_of(settings, options),
        pass_ms=times,
        measured=None if probe is None else probe.costs(),
    )
    made = None if probe is None else {"at": probe.at, "host": probe.host, "torch": probe.torch, "engine": probe.engine}
    return {**result, "node": settings.node.name, "tpot_from": study, "probe": made}


def ranks_of(settings: Settings, options: dict[str, Any]) -> int:
    """Tensor-parallel size: as the options say, else every GPU of the node."""
    given = options.get("tp-size", options.get("tp", options.get("tensor-parallel-size")))
    return int(given) if given is not None else max(settings.node.gpus, 1)


def rows_of_pass(phase: PhaseSpec, draft_tokens: int, chunk: int) -> int:
    """Rows of activations in one forward pass: every stream's tokens in decode, a full chunk (or all prompts) in prefill."""
    if phase.kind == "decode":
        return phase.concurrency * draft_tokens
    return min(chunk, phase.concurrency * phase.input.value)


def measured_tpot(root: RootPaths, settings: Settings, phases: list[str]) -> tuple[dict[str, float], str | None]:
    """Phase -> TPOT p50 (ms) of the baseline in the newest study of this node and model on a real engine, and that study.

    A simulated engine's times say nothing about a node, so they are never used."""
    found = sorted(root.studies.glob("*/decision.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        decision = read_json(path)
        if decision.get("engine", {}).get("simulated") or decision.get("node") != settings.node.name:
            continue
        if decision.get("model") not in ("", settings.model.name):
            continue
        baseline = next((arm for arm in decision["arms"] if arm["name"] == decision["baseline"]), None)
        values = {} if baseline is None else baseline.get("values", {})
        times = {name: values[name]["tpot_p50_ms"] for name in phases if "tpot_p50_ms" in values.get(name, {})}
        if times:
            return times, str(decision["study"])
    return {}, None


def provenance(result: dict[str, Any]) -> str:
    """Where the figures come from, one line each."""
    lines = [f"{name}: {source}" for name, source in result["sources"].items() if source]
    lines.append(
        f"TPOT: baseline of study {result['tpot_from']}" if result["tpot_from"] else "TPOT: no real engine has been measured on this node"
    )
    return "\n".join(lines)
