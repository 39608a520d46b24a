"""From a study's records to one night: what was watched, who it was, how the node felt. Pure functions."""

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from runner.actions.history import EXPERIMENT
from runner.config import Settings
from runner.records.night import Night, Observed, Quantity, key
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord

CLOCK_PCT = 2.0
WARMER_C = 10.0


def quantities_of(plan: Plan, settings: Settings) -> list[Quantity]:
    """`protocol.primary` x arms, the baseline among them: the family over which false alarms are counted."""
    found: dict[str, Quantity] = {}
    for primary in settings.protocol.primary:
        for phase in plan.phases:
            kind = settings.workload.phases[phase].kind
            if (not primary.phases or phase in primary.phases) and primary.kind in (None, kind):
                for arm in plan.arms:
                    quantity = Quantity(arm=arm.name, phase=phase, metric=primary.metric)
                    found.setdefault(key(quantity), quantity)
    return list(found.values())


def values_of(records: Sequence[LaunchRecord], quantities: Sequence[Quantity]) -> dict[str, tuple[float, ...]]:
    """Quantity key -> values of the valid measured launches, in time order; quantities without any are left out."""
    found: dict[str, tuple[float, ...]] = {}
    ordered = sorted(records, key=lambda record: record.started_at)
    for quantity in quantities:
        values = []
        for record in ordered:
            if record.purpose != "measure" or record.outcome != "ok" or record.arm != quantity.arm:
                continue
            phase = record.phase(quantity.phase)
            if phase is not None and phase.valid and phase.metrics.get(quantity.metric, 0.0) > 0:
                values.append(phase.metrics[quantity.metric])
        if values:
            found[key(quantity)] = tuple(values)
    return found


def identity_of(
    plan: Plan, settings: Settings, records: Sequence[LaunchRecord], nodes: Sequence[Mapping[str, Any]], limits: str
) -> dict[str, str]:
    """What could explain a change between two nights. `nodes`: facts of the journal's last `nodes` entry; `limits`: power and
    clock limits as text, '' where they are not known."""
    facts = nodes[0] if nodes else {}
    uuids = sorted(uuid for node in nodes for uuid in node.get("gpus", ()))
    patches = {name: digest for record in records for name, digest in record.command.patches.items()}
    built = sorted({record.engine.build for record in records})
    identity = {
        EXPERIMENT: plan.experiment or "nightly",
        "engine": f"{plan.engine_kind} {plan.engine_version}",
        "engine build": ", ".join(built),
        "driver": str(facts.get("driver") or "-"),
        "host": ", ".join(sorted({str(node.get("host")) for node in nodes})),
        "GPUs": f"{len(uuids)} ({_digest(uuids)})" if uuids else "none",
        "node": plan.node,
        "model": f"{plan.model} {settings.model.path or ''}".strip(),
        "baseline": " ".join(f"{factor}={level}" for factor, level in plan.baseline_levels.items()),
        "configurations": _digest({arm.name: arm.configuration_hash for arm in plan.arms}),
        "workload": _digest({name: settings.workload.phases[name].model_dump(mode="json") for name in plan.phases}),
        "phase length": f"{settings.protocol.phase_scale:g}",
        "patches": ", ".join(f"{name} {digest[:12]}".strip() for name, digest in sorted(patches.items())) or "none",
    }
    return identity | ({"GPU limits": limits} if limits else {})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def night_of(study: str, records: Sequence[LaunchRecord], quantities: Sequence[Quantity], identity: dict[str, str], at: float) -> Night:
    """`at` is used where nothing was launched."""
    first = min((record.started_at for record in records), default=at)
    return Night(study=study, at=first, identity=identity, values=values_of(records, quantities))


def observed_of(records: Sequence[LaunchRecord]) -> Observed:
    """Clocks, power and temperature under load; throttling that was seen in any phase."""
    seen = [phase.telemetry for record in records if record.purpose == "measure" for phase in record.phases]

    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(statistics.median(known), 1) if known else None

    return Observed(
        sm_clock_mhz=middle([each.sm_clock_mhz_p50 for each in seen]),
        memory_clock_mhz=middle([each.memory_clock_mhz_p50 for each in seen]),
        power_w=middle([each.power_w_mean for each in seen]),
        temperature_c=middle([each.temperature_c_max for each in seen]),
        throttle=tuple(sorted({reason for each in seen for reason in each.throttle_reasons})),
    )


def felt_different(usual: Sequence[Observed], tonight: Observed) -> dict[str, tuple[str, str]]:
    """Clocks more than CLOCK_PCT from the baseline nights' median, a GPU WARMER_C warmer, throttling that was not there."""
    changed: dict[str, tuple[str, str]] = {}
    for word, name in (("SM clock under load", "sm_clock_mhz"), ("memory clock under load", "memory_clock_mhz")):
        before = [value for night in usual if (value := getattr(night, name)) is not None]
        now = getattr(tonight, name)
        if before and now is not None:
            normal = statistics.median(before)
            if abs(now / normal - 1) * 100 > CLOCK_PCT:
                changed[word] = (f"{normal:.0f} MHz", f"{now:.0f} MHz")
    heat = [night.temperature_c for night in usual if night.temperature_c is not None]
    if heat and tonight.temperature_c is not None and tonight.temperature_c > statistics.median(heat) + WARMER_C:
        changed["temperature"] = (f"{statistics.median(heat):.0f} C", f"{tonight.temperature_c:.0f} C")
    known = {reason for night in usual for reason in night.throttle}
    fresh = [reason for reason in tonight.throttle if reason not in known]
    if usual and fresh:
        changed["throttling"] = (", ".join(sorted(known)) or "none", ", ".join(tonight.throttle))
    return changed


def limits_text(limits: Sequence[Any]) -> str:
    """Power limits and set clocks of all GPUs, shortened where they agree. `limits`: runner.engines.gpu_limits.GpuLimits."""
    power = sorted({f"{each.power_limit_w:.0f} W" for each in limits if each.power_limit_w is not None})
    clocks = sorted({f"{each.sm_clock_set_mhz} MHz" for each in limits if each.sm_clock_set_mhz is not None})
    persistence = sorted({"on" if each.persistence else "off" for each in limits if each.persistence is not None})
    parts = [("power", power), ("SM clock set", clocks), ("persistence", persistence)]
    return "; ".join(f"{word} {'/'.join(values)}" for word, values in parts if values)
