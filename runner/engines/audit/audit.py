"""The audit: every flag's gates in the installed source, and what they give on this node. No import, no GPU."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.engines.audit.compile_lists import compile_gates
from runner.engines.audit.facts import Facts
from runner.engines.audit.gates import Gate, gates_of
from runner.engines.audit.index import SourceIndex
from runner.engines.audit.packages import Package, packages_of
from runner.engines.audit.subjects import SUBJECTS
from runner.errors import UserError, choices

# What decides most comes first.
WEIGHT = {"raises": 0, "closed": 1, "depends": 2, "open": 3, "not reached": 4}


def audit(
    source: str | Path,
    capability: int,
    world_size: int,
    *,
    link: str | None = None,
    flags: Sequence[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    architecture: str | None = None,
    packages: Mapping[str, Package] | None = None,
    whole: bool = False,
) -> list[Gate]:
    """Gates of every flag (or of `flags`), those that decide most first within a flag.

    `source`: a folder of sources (site-packages, an unpacked wheel, an overlay's `site`) or the engine's interpreter.
    `capability`: compute capability x 10. `arguments`: engine arguments of the arm by attribute name, over the flag's own.
    `architecture`: class name of the served model; model files are looked at only for that. `whole`: a folder that
    holds each of the engine's packages that its environment has, so that what is not there is missing. Raises UserError without sglang.
    """
    known = {subject.name for subject in SUBJECTS}
    unknown = set(flags or ()) - known
    if unknown:
        raise UserError(f"audit knows no flag {', '.join(sorted(unknown))}; choices: {choices(known)}")
    found = dict(packages) if packages is not None else packages_of(source)
    if "sglang" not in found:
        raise UserError(f"{source}: there is no sglang package; give the engine's interpreter or a folder that holds the package")
    facts = Facts(
        capability=capability, world_size=world_size, link=link, arguments=dict(arguments or {}), environment=dict(environment or {})
    )
    # Syntax trees are many small objects without cycles: the collector would walk them again and again while they grow.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _gates(SourceIndex(found["sglang"], architecture), found, facts, flags, installed=whole or not Path(source).is_dir())
    finally:
        if collecting:
            gc.enable()


def _gates(index: SourceIndex, found: Mapping[str, Package], facts: Facts, flags: Sequence[str] | None, installed: bool) -> list[Gate]:
    gates: list[Gate] = []
    for subject in SUBJECTS:
        if flags is not None and subject.name not in flags:
            continue
        mine = [_module_known(gate, found, installed) for gate in gates_of(subject, index, facts)]
        if "flashinfer" in found:
            mine += compile_gates(subject, found["flashinfer"], facts)
        gates += sorted(mine, key=lambda gate: (not gate.own, WEIGHT[gate.gives], gate.file, gate.line))
    return gates


def _module_known(gate: Gate, packages: Mapping[str, Package], installed: bool) -> Gate:
    """Says whether a needed module is there, where that can be told without importing it."""
    if gate.kind != "needs module" or gate.gives != "depends":
        return gate
    names = gate.condition.removeprefix("import ").split(", ")
    answers = [_present(name, packages, installed) for name in names]
    if all(answer is True for answer in answers):
        return gate.model_copy(update={"gives": "open"})
    if any(answer is False for answer in answers):
        missing = [name for name, answer in zip(names, answers, strict=True) if answer is False]
        return gate.model_copy(update={"gives": "closed", "depends_on": f"not there: {', '.join(missing)}"})
    return gate.model_copy(update={"depends_on": gate.condition})


def _present(name: str, packages: Mapping[str, Package], installed: bool) -> bool | None:
    parts = name.split(".")
    if parts[0] not in packages:
        return False if installed and parts[0] in {"mscclpp", "flashinfer", "sgl_kernel"} else None
    place = packages[parts[0]].folder
    for part in parts[1:]:
        if (place / part).is_dir():
            place = place / part
        elif (place / f"{part}.py").is_file() or any(place.glob(f"{part}.*.so")):
            return True
        else:
            text = (place / "__init__.py").read_text(errors="replace") if (place / "__init__.py").is_file() else ""
            return part in text
    return True
