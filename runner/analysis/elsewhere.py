"""Records from elsewhere: launch records in the documented schema, judged by the same code, as one look."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from runner.analysis.judge import judge
from runner.analysis.noise import NoiseFloor, noise_floor
from runner.analysis.observations import MEASURING, ordered
from runner.errors import UserError
from runner.records.decision import Decision
from runner.records.plan import Arm, Cell, Estimate, Hypothesis, Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol

LISTED_ERRORS = 5


def analyze_records(
    records: str | Iterable[str], protocol: Protocol, *, baseline: str | None = None, noise: NoiseFloor | None = None
) -> Decision:
    """`records`: text or lines of JSON, one launch record a line, or a journal. Raises UserError naming the lines that are wrong.

    The baseline is `baseline`, else the arm called `baseline`, else the first arm launched (and a warning says so). Launches of
    purpose `noise`, beside others, are the noise floor; they carry no verdict of their own."""
    launches = read_records(records)
    measured = [launch for launch in ordered(launches) if launch.purpose in MEASURING]
    if not measured:
        raise UserError("records hold no measured launch (purpose measure or noise); nothing can be judged")
    warnings = []
    apart = [launch for launch in launches if launch.purpose == "noise"]
    if apart and any(launch.purpose == "measure" for launch in launches):
        noise = noise or noise_floor(apart)
        launches = [launch for launch in launches if launch.purpose != "noise"]
        measured = [launch for launch in measured if launch.purpose != "noise"]
    names = list(dict.fromkeys(launch.arm for launch in measured))
    if baseline is None:
        baseline = "baseline" if "baseline" in names else names[0]
        if baseline != "baseline":
            warnings.append(f"no arm is called baseline: the first one launched, {baseline}, is taken for it")
    elif baseline not in names:
        raise UserError(f"no launch of the baseline {baseline!r}; arms in the records: {', '.join(names)}")
    warnings += _unlike(measured)
    launches, paired = _blocks(launches)
    if paired:
        warnings.append("an arm has several launches in one block: the k-th launches of all arms are taken as block k")
    plan = _plan(launches, baseline, protocol)
    count = len({launch.block for launch in launches if launch.purpose in MEASURING})
    looks = (max(count, protocol.min_blocks),)
    decision = judge(plan, launches, protocol, noise=noise, looks=looks)
    return decision.model_copy(update={"warnings": (*warnings, *decision.warnings)})


def read_records(records: str | Iterable[str]) -> list[LaunchRecord]:
    """A launch id counts once per study (the last word wins). Raises UserError."""
    lines = records.splitlines() if isinstance(records, str) else list(records)
    found: dict[tuple[str, str], LaunchRecord] = {}
    wrong = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
            if isinstance(value, dict) and "kind" in value and "seq" in value:
                if value["kind"] != "launch_finished":
                    continue
                value = value["launch"]
            record = LaunchRecord.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "record"
            wrong.append(f"line {number}: {where}: {first['msg']}")
        except (ValueError, KeyError, TypeError) as error:
            wrong.append(f"line {number}: not a launch record ({error})")
        else:
            found[(record.study, record.launch)] = record
    if wrong:
        more = f"\n... and {len(wrong) - LISTED_ERRORS} more" if len(wrong) > LISTED_ERRORS else ""
        raise UserError(
            "these lines are not launch records of schema 1 (python -m runner.records.schema prints it):\n"
            + "\n".join(wrong[:LISTED_ERRORS])
            + more
        )
    return list(found.values())


def _unlike(launches: Sequence[LaunchRecord]) -> list[str]:
    """Records whose metadata disagree are said to be so; what differs by block is taken out by the block, the rest is not."""
    found = []
    for what, values in (
        ("engine builds", {launch.engine.build for launch in launches}),
        ("nodes", {launch.node for launch in launches}),
        ("versions of the measures", {str(launch.measures) for launch in launches}),
        ("simulated and real engines", {str(launch.engine.simulated) for launch in launches}),
    ):
        if len(values) > 1:
            found.append(f"the records mix {what}: {', '.join(sorted(values))}")
    if len({launch.engine.simulated for launch in launches}) > 1:
        raise UserError("the records mix simulated and real engines; these are never pooled: split the file")
    if len({launch.measures for launch in launches}) > 1:
        raise UserError("the records mix versions of the measures (field measures); these are never pooled: split the file")
    return found


def _blocks(launches: Sequence[LaunchRecord]) -> tuple[list[LaunchRecord], bool]:
    """Blocks as recorded, or, where an arm was launched well more than once in a block, the k-th launch of each arm is block k."""
    seen: set[tuple[int, str]] = set()
    repeated = False
    for launch in launches:
        if launch.purpose in MEASURING and launch.outcome == "ok":
            repeated = repeated or (launch.block, launch.arm) in seen
            seen.add((launch.block, launch.arm))
    if not repeated:
        return list(launches), False
    counts: dict[str, int] = {}
    renumbered = []
    for position, launch in enumerate(ordered(launches)):
        if launch.purpose in MEASURING and launch.outcome == "ok":
            block = counts.get(launch.arm, 0)
            counts[launch.arm] = block + 1
            launch = launch.model_copy(update={"block": block, "position": position})
        renumbered.append(launch)
    return renumbered, True


def _plan(launches: Sequence[LaunchRecord], baseline: str, protocol: Protocol) -> Plan:
    measured = [launch for launch in launches if launch.purpose in MEASURING]
    levels = {launch.arm: launch.levels for launch in reversed(launches)}
    names = [baseline, *(name for name in dict.fromkeys(launch.arm for launch in launches) if name != baseline)]
    phases = list(dict.fromkeys(phase.phase for launch in measured for phase in launch.phases))
    first = measured[0]
    return Plan(
        study=first.study,
        experiment="records",
        engine_kind=first.engine.kind,
        engine_version=first.engine.version,
        simulated=any(launch.engine.simulated for launch in measured),
        node=first.node,
        model="",
        baseline=baseline,
        baseline_levels=levels.get(baseline, {}),
        factors=tuple(dict.fromkeys(factor for own in levels.values() for factor in own)),
        raw_cells=len(names),
        cells=tuple(Cell(levels=levels.get(name, {}), status="ARM", arm=name) for name in names),
        arms=tuple(Arm(name=name, levels=levels.get(name, {})) for name in names),
        phases=tuple(phases),
        hypotheses=tuple(
            Hypothesis(arm=name, phase=phase, metric=metric)
            for phase, metric in _primary(measured, phases, protocol)
            for name in names
            if name != baseline
        ),
        blocks=(),
        estimate=Estimate(estimate=0.0, low=0.0, high=0.0),
    )


def _primary(launches: Sequence[LaunchRecord], phases: Sequence[str], protocol: Protocol) -> list[tuple[str, str]]:
    """(phase, metric) of the protocol's primary list. A record does not say a phase's kind: a name with `prefill` is one, a name
    with `mixed` is mixed, all others are decode. Where nothing matches, every phase's TPOT p50 counts."""
    found = []
    for item in protocol.primary:
        for phase in phases:
            kind = "prefill" if "prefill" in phase else "mixed" if "mixed" in phase else "decode"
            if (item.phases and phase not in item.phases) or (item.kind is not None and item.kind != kind):
                continue
            if any(item.metric in record.metrics for launch in launches for record in launch.phases if record.phase == phase):
                found.append((phase, item.metric))
    if not found:
        for phase in phases:
            metrics = {metric for launch in launches for record in launch.phases if record.phase == phase for metric in record.metrics}
            found += [(phase, metric) for metric in ("tpot_p50_ms", "ttft_p50_ms", "output_tok_s") if metric in metrics][:1]
    return list(dict.fromkeys(found))
