"""The audit as JSON and as a table for people."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from runner.engines.audit.gates import Gate
from runner.engines.audit.packages import Package
from runner.engines.audit.subjects import SUBJECTS

SCHEMA = 1
WORDS = {
    "raises": "REFUSES here",
    "closed": "CLOSED here",
    "depends": "depends on",
    "open": "open here",
    "not reached": "not reached here",
}


def verdict_of(gates: Sequence[Gate]) -> str:
    """What the own gates of one flag say together: refused, inert, undecided or open; `no gate found` when there is none.
    A refusal outranks a closed gate; with several independent gates a closed one need not switch all of a flag off."""
    own = [gate for gate in gates if gate.own and gate.gives != "not reached"]
    if not own:
        return "no gate found"
    for gives, word in (("raises", "refused"), ("closed", "a gate is closed"), ("depends", "undecided")):
        if any(gate.gives == gives for gate in own):
            return word
    return "open"


def audit_json(
    gates: Sequence[Gate], *, packages: Mapping[str, Package], capability: int, world_size: int, link: str | None
) -> dict[str, Any]:
    """One JSON object: `schema`, `packages`, `node`, `flags`: list of {`flag`, `option`, `verdict`, `gates`}."""
    return {
        "schema": SCHEMA,
        "packages": {name: package.version for name, package in packages.items()},
        "node": {"capability": capability, "world_size": world_size, "link": link},
        "flags": [
            {
                "flag": subject.name,
                "option": subject.option,
                "verdict": verdict_of(mine),
                "gates": [gate.model_dump(mode="json") for gate in mine],
            }
            for subject in SUBJECTS
            if (mine := [gate for gate in gates if gate.flag == subject.name])
        ],
    }


def audit_text(
    gates: Sequence[Gate], *, packages: Mapping[str, Package], capability: int, world_size: int, link: str | None, width: int = 140
) -> str:
    """The same to read: by flag, own gates with place, condition, answer and reason; the rest is counted."""
    versions = ", ".join(f"{name} {package.version or '?'}" for name, package in packages.items())
    lines = [
        f"Gates in {versions}, read for compute capability {capability // 10}.{capability % 10}, {world_size} GPUs, link {link or 'unknown'}"
    ]
    for subject in SUBJECTS:
        mine = [gate for gate in gates if gate.flag == subject.name]
        if not mine:
            continue
        lines += ["", f"{subject.name}  ({subject.option}): {verdict_of(mine)}"]
        shown = [gate for gate in mine if gate.own and gate.gives != "not reached"]
        for gate in shown:
            lines += _gate_lines(gate, width)
        if len(mine) > len(shown):
            lines.append(
                f"  and {len(mine) - len(shown)} further conditions that mention it or are not reached here (json=true lists them)"
            )
    return "\n".join(lines)


def _gate_lines(gate: Gate, width: int) -> list[str]:
    lines = [f"  {WORDS[gate.gives]:<14} {gate.file}:{gate.line}  {gate.function}  [{gate.kind}]"]
    indent = " " * 17
    lines += textwrap.wrap(gate.condition, width, initial_indent=f"{indent}if   ", subsequent_indent=f"{indent}     ", max_lines=4)
    because = ", ".join(f"{name} = {value}" for name, value in gate.values.items())
    if because and gate.gives != "open":
        lines += textwrap.wrap(because, width, initial_indent=f"{indent}here ", subsequent_indent=f"{indent}     ", max_lines=3)
    if gate.gives == "depends" and gate.depends_on:
        lines += textwrap.wrap(gate.depends_on, width, initial_indent=f"{indent}on   ", subsequent_indent=f"{indent}     ", max_lines=3)
    if gate.effect:
        lines += textwrap.wrap(gate.effect, width, initial_indent=f"{indent}then ", subsequent_indent=f"{indent}     ", max_lines=3)
    return lines
