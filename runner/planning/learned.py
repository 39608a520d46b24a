"""What earlier launches on a node teach about the cost of the next ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import Field

from runner.records.schema import LaunchRecord
from runner.spec.base import Strict


class Learned(Strict):
    """Seconds of a launch that are not spent on phases (start to ready, checks, stop): median, lowest and highest. `cold`: a
    launch that compiles; `warm`: one that finds its caches filled. Null where nothing was seen."""

    cold_s: float | None = None
    cold_range_s: tuple[float, float] | None = None
    warm_s: float | None = None
    warm_range_s: tuple[float, float] | None = None
    launches: int = Field(default=0, ge=0)
    source: str = ""


@dataclass(frozen=True)
class _Launch:
    cost_s: float
    cold: bool
    build: str


def learn(records: Iterable[LaunchRecord], *, engine_build: str | None = None) -> Learned:
    """From finished launches: unmeasured ones (smoke, prime) are the cold ones, else the first of each arm."""
    served = sorted((r for r in records if r.outcome in ("ok", "invalid")), key=lambda record: record.started_at)
    primed = any(record.purpose in ("smoke", "prime") for record in served)
    seen: set[tuple[str, str]] = set()
    found = []
    for record in served:
        driven = record.stages.get("phases", sum(phase.window_s + phase.warmup_s for phase in record.phases))
        key = (record.engine.build, record.arm)
        cold = record.purpose in ("smoke", "prime") if primed else key not in seen
        seen.add(key)
        found.append(_Launch(max(0.0, record.ended_at - record.started_at - driven), cold, record.engine.build))
    return _summary(found, engine_build)


def learned_from_file(content: Mapping[str, Any], *, engine_build: str | None = None) -> Learned:
    """From a node's launch_costs.json: `launches`, each with total_s, phases_s, cold, engine_build. Incomplete entries are left out."""
    found = []
    for entry in content.get("launches", ()):
        if isinstance(entry, Mapping) and {"total_s", "phases_s"} <= entry.keys():
            cost = max(0.0, float(entry["total_s"]) - float(entry["phases_s"]))
            found.append(_Launch(cost, bool(entry.get("cold")), str(entry.get("engine_build", ""))))
    return _summary(found, engine_build)


def _summary(launches: Sequence[_Launch], engine_build: str | None) -> Learned:
    """Launches of the same build where there are some: another build compiles other kernels."""
    same = [launch for launch in launches if launch.build == engine_build]
    chosen = same if same else list(launches)
    if not chosen:
        return Learned()
    cold = [launch.cost_s for launch in chosen if launch.cold]
    warm = [launch.cost_s for launch in chosen if not launch.cold]
    whose = "of this engine build" if same else "on this node"
    return Learned(
        cold_s=median(cold) if cold else None,
        cold_range_s=(min(cold), max(cold)) if cold else None,
        warm_s=median(warm) if warm else None,
        warm_range_s=(min(warm), max(warm)) if warm else None,
        launches=len(chosen),
        source=f"learned from {len(chosen)} launches {whose}",
    )
