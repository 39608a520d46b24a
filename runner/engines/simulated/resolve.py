"""What the played version's argument checks say to each arm, in the words and types of `engines/resolve.py`.

Only what SGLang knows before a scheduler starts: options and argument combinations. What a scheduler refuses (an architecture, a
bad SGLANG_MSCCLPP_MAX_BYTES) is refused at the start, here as there."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from runner.engines.resolve import Resolution, ResolveRequest
from runner.engines.simulated import options
from runner.engines.simulated.force import decide
from runner.engines.simulated.launch import DEFAULT_VERSION, modules_of
from runner.engines.simulated.shapes import Model, Node, version_of
from runner.spec.engine import EngineSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec

UNSTABLE = ("random_seed", "nccl_port", "port")


def resolve_simulated(
    engine: EngineSpec, node: NodeSpec, requests: Sequence[ResolveRequest], model: ModelSpec | None = None
) -> list[Resolution]:
    """One Resolution a request, in the order given. `model`: without it nothing that depends on the architecture is resolved."""
    text = engine.version or DEFAULT_VERSION
    version = version_of(text)
    shape = Model.of(model.model_dump(mode="json")) if model is not None else Model()
    machine = Node.of(node.model_dump(mode="json"))
    modules = modules_of(engine.simulation.model_dump(mode="json"))
    answers = []
    for request in requests:
        began = time.monotonic()
        common: dict[str, Any] = {"key": request.key, "engine_version": text, "capability": node.capability or None}
        try:
            args = options.parse(request.argv, version)
        except options.Refused as refused:
            kind = "unknown_cli_option" if "unrecognized" in refused.sentence else "invalid_option_value"
            answers.append(Resolution(ok=False, error=refused.sentence, kind=kind, seconds=time.monotonic() - began, **common))
            continue
        env = {**node.env, **engine.env, **request.env}
        decision = decide(version, args, env, (), shape, machine, modules)
        refusal = decision.refusal
        if refusal is not None and refusal.stage == "arguments":
            file, line, _ = refusal.frames[-1]
            answers.append(
                Resolution(
                    ok=False,
                    error=refusal.line,
                    kind="rejected_argument_combination",
                    where=f"{file}:{line}",
                    seconds=time.monotonic() - began,
                    **common,
                )
            )
            continue
        stable = {name: value for name, value in decision.args.items() if name not in UNSTABLE}
        unstable = {name: value for name, value in decision.args.items() if name in UNSTABLE}
        said = "\n".join(text for stage, _, text in decision.lines if stage == "arguments")
        answers.append(Resolution(ok=True, resolved=stable, unstable=unstable, seconds=time.monotonic() - began, log=said, **common))
    return answers


def probe_simulated(engine: EngineSpec, node: NodeSpec) -> dict[str, Any]:
    """What a probe of the engine's environment would find, in the shape of the real probe's JSON."""
    modules = modules_of(engine.simulation.model_dump(mode="json"))
    importable = {"mscclpp": modules["mscclpp"], "flashinfer": True, "flashinfer.comm": modules["flashinfer_comm"], "sgl_kernel": True}
    errors: Mapping[str, str] = {name: f"No module named '{name}'" for name, there in importable.items() if not there}
    return {
        "simulated": True,
        "engine_version": engine.version or DEFAULT_VERSION,
        "capability": [node.capability // 10, node.capability % 10],
        "gpus": node.gpus,
        "world_size": node.gpus,
        "importable": importable,
        "import_errors": dict(errors),
    }
