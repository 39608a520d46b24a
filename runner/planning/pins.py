"""What every arm gets written out, so that nothing is left to the engine: what it would switch on, size or draw by itself.

Sources: SGLang's release wheels 0.5.9 to 0.5.23 (option names and defaults), and two H200s, where the engine turned all-reduce
fusion on by itself. `pins: {NAME: null}` in an experiment takes one away, any other value replaces it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from runner.planning.conditions import holds, parse, version_in
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from runner.spec.workload import Lengths, PhaseSpec

# Spellings that argparse takes for the same option, to the name /server_info shows (with dashes).
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "tp": "tp-size",
        "tensor-parallel-size": "tp-size",
        "ep": "ep-size",
        "expert-parallel-size": "ep-size",
        "dp": "dp-size",
        "data-parallel-size": "dp-size",
        "pp": "pp-size",
        "pipeline-parallel-size": "pp-size",
    }
)
# The engine versions whose option names and defaults were read.
KNOWN = ">=0.5.9,<0.5.24"
# (name, versions that call it otherwise, the other name): a file may use either, a launch gets the version's own.
RENAMED: tuple[tuple[str, str, str], ...] = (
    ("cuda-graph-bs-decode", "<0.5.14", "cuda-graph-bs"),
    ("cuda-graph-bs", ">=0.5.14", "cuda-graph-bs-decode"),
    ("cuda-graph-max-bs-decode", "<0.5.14", "cuda-graph-max-bs"),
    ("cuda-graph-max-bs", ">=0.5.14", "cuda-graph-max-bs-decode"),
    ("dsa-prefill-backend", "<0.5.13", "nsa-prefill-backend"),
    ("dsa-decode-backend", "<0.5.13", "nsa-decode-backend"),
    ("nsa-prefill-backend", ">=0.5.13", "dsa-prefill-backend"),
    ("nsa-decode-backend", ">=0.5.13", "dsa-decode-backend"),
    ("stream-output", ">=0.5.10", "incremental-streaming-output"),
    ("incremental-streaming-output", "<0.5.10", "stream-output"),
)
# What an option is where nobody sets it; switches are false, everything else is null.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"tp-size": 1, "ep-size": 1, "dp-size": 1, "pp-size": 1, "nnodes": 1, "attn-dp-size": 1, "moe-a2a-backend": "none"}
)


def canonical(name: str) -> str:
    """The option's name with dashes, without leading ones, aliases resolved."""
    plain = name.lstrip("-").replace("_", "-")
    return ALIASES.get(plain, plain)


def name_in(version: Version, name: str) -> str:
    """The canonical name that this engine version uses for the option."""
    plain = canonical(name)
    for known, versions, other in RENAMED:
        if plain == known and version_in(version, versions, "renamed options"):
            return other
    return plain


def option_value(options: Mapping[str, Any], name: str) -> Any:
    """The effective value of an option in an arm: as set, else the engine's default as far as it matters to rules."""
    key = name if name in options else canonical(name)
    if options.get(key) is not None:
        return options[key]
    if key in DEFAULTS:
        return DEFAULTS[key]
    return False if key.startswith(("enable-", "disable-", "enforce-")) else None


@dataclass(frozen=True)
class Pin:
    """Options and variables for the engine versions, nodes and models that the conditions name."""

    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    engine: str = ">=0"
    node: str = "gpus >= 0"
    model: str = "hidden_size > 0"


PINS: tuple[Pin, ...] = (
    Pin("metrics add work to every step: on in every arm or in none", {"enable-metrics": True}),
    Pin("else the engine draws one at each launch", {"random-seed": 20261}),
    Pin(
        "the engine turns it on by itself for some models on SM90 and SM10X",
        {"enforce-disable-flashinfer-allreduce-fusion": True},
        engine=">=0.5.10",
        node="gpus >= 2",
    ),
    Pin(
        "overlap flags switch it off by themselves from 0.5.11 on, and checkpoints with BF16 shared experts break with it before 0.5.18",
        {"disable-shared-experts-fusion": True},
        node="gpus >= 1",
        model="experts > 0",
    ),
    Pin("sized by GPU memory otherwise", {"chunked-prefill-size": 8192}, node="gpus >= 1"),
    Pin("on by itself from 0.5.11 on for models that are not on the engine's list", {"disable-piecewise-cuda-graph": True}, engine=">=0.5.11,<0.5.14", node="gpus >= 1"),
    Pin("the prefill phase runs eagerly in every arm", {"cuda-graph-backend-prefill": "disabled"}, engine=">=0.5.14", node="gpus >= 1"),
    Pin("off by default to 0.5.17, on from 0.5.18 on", env={"SGLANG_AUTO_NUMA_BIND": "0"}, engine=">=0.5.10", node="gpus >= 1"),
)  # fmt: skip


def baseline_pins(
    node: NodeSpec, model: ModelSpec, version: Version, phases: Mapping[str, PhaseSpec]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(options, env) of every arm before the model, the experiment and the levels have their say."""
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    if node.gpus >= 2:
        options["tp-size"] = node.gpus
    facts, shape = node.model_dump(), model.model_dump()
    for pin in PINS:
        where = f"pin {pin.why!r}"
        if not version_in(version, pin.engine, where):
            continue
        if holds(parse(pin.node, where), facts, where) and holds(parse(pin.model, where), shape, where):
            options.update(pin.options)
            env.update(pin.env)
    widest = max((phase.concurrency for phase in phases.values()), default=1)
    if node.gpus >= 1:
        options[name_in(version, "cuda-graph-bs-decode")] = captured_batches(widest)
    options["max-running-requests"] = widest
    options["max-total-tokens"] = kv_tokens(phases.values())
    return options, env


def unpinned(node: NodeSpec, version: Version) -> tuple[str, ...]:
    """What the pins cannot promise for this version: things the engine may still do by itself."""
    texts = []
    if not version_in(version, KNOWN, "pins"):
        texts.append(f"option names and defaults of the baseline were read from engine versions {KNOWN}; {version} is outside")
    if node.gpus >= 2 and version_in(version, "<0.5.10", "pins") and node.capability in (90, 100, 103):
        texts.append(f"{version} has no option that forbids all-reduce fusion, and turns it on by itself for some models on this GPU")
    if node.gpus >= 1 and version_in(version, ">=0.5.10,<0.5.11", "pins"):
        texts.append("whether 0.5.10 captures piecewise prefill graphs by itself was not looked at")
    return tuple(texts)


def captured_batches(widest: int) -> list[int]:
    """Decode batches to capture: powers of two, steps of 16 from 32 on, and the widest batch that any phase can run."""
    sizes = {1, 2, 4, 8, 16, *range(32, widest, 16), widest}
    return sorted(size for size in sizes if size <= widest)


def kv_tokens(phases: Any) -> int:
    """The KV pool of every arm, tokens: twice what the widest phase holds at once, in steps of 4096, at least 16384.

    Flags move the pool behind one's back (legacy mscclpp takes 9 times its limit from every GPU)."""
    need = max((phase.concurrency * (longest(phase.input) + longest(phase.output)) for phase in phases), default=0)
    return max(16384, -(-2 * need // 4096) * 4096)


def longest(lengths: Lengths) -> int:
    """What a long request of these lengths takes, tokens: of a lognormal draw four times its mean, else the longest possible."""
    return {"fixed": lengths.value, "uniform": lengths.high, "lognormal": min(lengths.high, 4 * lengths.value)}[lengths.kind]
