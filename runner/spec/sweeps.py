"""A phase written with several rates or concurrencies is that many phases: a rate sweep in one line of a workload."""

from collections.abc import Mapping
from typing import Any

from runner.errors import UserError

AXES = {"rate": "r", "concurrency": "c"}


def expand_sweeps(phases: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """(phases with every sweep written out, sweep -> its phases): `open: {rate: [2, 4]}` gives open_r2 and open_r4, in that order.
    Raises UserError for a list that is empty, has a value twice, or stands on two axes."""
    written: dict[str, Any] = {}
    members: dict[str, list[str]] = {}
    for name, phase in phases.items():
        axes = [key for key in AXES if isinstance(phase, Mapping) and isinstance(phase.get(key), list)]
        if not axes:
            written[name] = phase
            continue
        if len(axes) > 1:
            raise UserError(
                f"workload.phases.{name}: only one of {' and '.join(axes)} can be a list; write one phase for each of the other"
            )
        axis = axes[0]
        values = phase[axis]
        if not values or len({str(value) for value in values}) != len(values):
            raise UserError(f"workload.phases.{name}.{axis}: give at least one value, each once, not {values}")
        members[name] = [f"{name}_{AXES[axis]}{value}" for value in values]
        for member, value in zip(members[name], values, strict=True):
            if member in phases:
                raise UserError(f"workload.phases.{name}.{axis}={value} would be the phase {member}, which is there already; rename one")
            written[member] = {**phase, axis: value}
    return written, members


def write_out(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with its workload's sweeps written out; where a sweep is named (phases, protocol.primary) its phases stand.
    What has another shape is left to the validation. Raises UserError."""
    workload, protocol = tree.get("workload"), tree.get("protocol")
    if not isinstance(workload, Mapping) or not isinstance(workload.get("phases"), Mapping):
        return dict(tree)
    phases, members = expand_sweeps(workload["phases"])

    def named(names: Any) -> Any:
        return [member for name in names for member in members.get(name, [name])] if isinstance(names, list) else names

    done = {**tree, "workload": {**workload, "phases": phases}}
    if "phases" in tree:
        done["phases"] = named(tree["phases"])
    if isinstance(protocol, Mapping) and isinstance(protocol.get("primary"), list):
        patterns = [{**p, "phases": named(p["phases"])} if isinstance(p, Mapping) and "phases" in p else p for p in protocol["primary"]]
        done["protocol"] = {**protocol, "primary": patterns}
    return done
