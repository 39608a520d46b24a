"""`action=audit`: what the program's entry calls."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.engines.audit.audit import audit
from runner.engines.audit.packages import packages_of
from runner.engines.audit.report import audit_json, audit_text
from runner.errors import UserError


def audit_engine(
    source: str | Path | None,
    *,
    capability: int,
    world_size: int,
    link: str | None = None,
    flags: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    architecture: str | None = None,
    python_path: Sequence[str] = (),
    whole: bool = False,
) -> dict[str, Any]:
    """The audit of an engine as one JSON-able object; its readable form is under `text`.

    `source`: the engine's interpreter, or a folder of its sources (site-packages, an unpacked wheel, an overlay's `site`).
    `options`: engine options of the arms by their option names. `python_path`: goes first on the interpreter's path. `whole`: the folder has
    all of the engine's packages that its environment has. Raises UserError.
    """
    if source is None:
        raise UserError("audit reads an installed engine: give engine.python=/path/to/its/venv/bin/python, or a folder of its sources")
    packages = packages_of(source, python_path=python_path)
    gates = audit(
        source,
        capability,
        world_size,
        link=link,
        flags=flags,
        arguments={name.lstrip("-").replace("-", "_"): value for name, value in (options or {}).items()},
        environment=environment,
        architecture=architecture,
        packages=packages,
        whole=whole,
    )
    node: dict[str, Any] = {"packages": packages, "capability": capability, "world_size": world_size, "link": link}
    return {**audit_json(gates, **node), "text": audit_text(gates, **node)}
