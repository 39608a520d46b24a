"""What MLflow shall show of a study: a pure function of its records. Rebuilding it gives the same runs, values and keys.

Flat runs, one an arm and one for the study; launches nested under their arm (the UI hides nested runs by default)."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from runner.records.decision import ArmResult, Decision
from runner.records.night import NightReport
from runner.records.paths import StudyPaths
from runner.records.plan import Arm, Plan
from runner.records.schema import LaunchRecord
from runner.records.words import INTERRUPTED, evidence_word, find, mean_effect, phase_word
from runner.spec.base import Strict
from runner.tracking.note import study_note

MAX_METRICS = 25
_VALUES = ("tpot_p50_ms", "output_tok_s", "ttft_p50_ms", "tpot_p99_ms", "ttft_p99_ms", "goodput_share")
_CURVES = ("tpot_p50_ms", "output_tok_s", "ttft_p50_ms")
_LAUNCH_VALUES = ("tpot_p50_ms", "output_tok_s", "ttft_p50_ms")

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


class MetricView(Strict):
    """One value. `step` is the concurrency for curves, else 0."""

    name: str
    value: float
    step: int = 0


class RunView(Strict):
    """One MLflow run as it shall be. `key` identifies it for ever; times in Unix milliseconds."""

    key: str
    kind: Literal["arm", "study", "launch"]
    name: str
    parent: str | None = None
    status: RunStatus = "FINISHED"
    start_ms: int = 0
    end_ms: int = 0
    params: dict[str, str] = Field(default_factory=dict)
    metrics: tuple[MetricView, ...] = ()
    tags: dict[str, str] = Field(default_factory=dict)
    artifacts: tuple[tuple[str, str], ...] = Field(default=(), description="(absolute file, folder inside the run)")

    @property
    def fixed(self) -> str:
        """Digest of what MLflow cannot change later: params and the points of curves."""
        return _digest([self.params, [metric.model_dump() for metric in self.metrics if metric.step]])

    @property
    def digest(self) -> str:
        """Digest of everything but the artifacts; the tag `records` holds `fixed-digest`."""
        return f"{self.fixed}-{_digest(self.model_dump(mode='json', exclude={'artifacts'}))}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def rounded(value: float) -> float:
    """Five significant digits: the runs table prints every digit it is given."""
    return float(f"{value:.5g}")


def study_view(
    plan: Plan,
    launches: Sequence[LaunchRecord],
    decision: Decision | None,
    study: StudyPaths,
    finished: bool,
    revision: str = "",
    stopped: bool = False,
) -> list[RunView]:
    """All runs of a study: the study's first, then arms, then launches. Curves are drawn only when the study is finished,
    because points of a curve cannot be taken back. What a `stopped` study has open is KILLED, until it is resumed."""
    results = {} if decision is None else {arm.name: arm for arm in decision.arms}
    by_arm: dict[str, list[LaunchRecord]] = {}
    for record in launches:
        by_arm.setdefault(record.arm, []).append(record)
    common = _common_tags(plan, revision)
    runs = [_study_run(plan, launches, decision, study, finished, common)]
    night = decision.night if decision else None
    runs += [_arm_run(plan, arm, results.get(arm.name), by_arm.get(arm.name, []), finished, common, night) for arm in plan.arms]
    runs += [_launch_run(plan, record, study, common) for record in launches]
    return [_killed(run) if stopped and run.status == "RUNNING" else run for run in runs]


def _killed(run: RunView) -> RunView:
    tags = {**run.tags, "status": "INTERRUPTED"} if run.kind == "study" else run.tags
    return run.model_copy(update={"status": "KILLED", "tags": tags})


def is_stopped(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Was the study interrupted in order, and not resumed since? From the journal; a driver that was killed leaves no word."""
    last: Mapping[str, Any] = next(
        (entry for entry in reversed(entries) if entry.get("kind") in ("study_started", "study_resumed", "launch_started", "event")), {}
    )
    return last.get("kind") == "event" and last.get("text") == INTERRUPTED


def _common_tags(plan: Plan, revision: str) -> dict[str, str]:
    return {
        "study": plan.study,
        "engine_kind": plan.engine_kind,
        "simulated": "true" if plan.simulated else "false",
        "mlflow.source.name": f"{'SIMULATED' if plan.simulated else plan.engine_kind} {plan.engine_version}",  # a column of every list
        "code_revision": revision or "not recorded",
    }


def _params(plan: Plan, levels: dict[str, str]) -> dict[str, str]:
    """Factor levels by their plain names; a factor that does not apply to the arm is `-`."""
    factors = {factor: levels.get(factor, "-") for factor in dict.fromkeys([*plan.factors, *levels])}
    return {**factors, **_ground(plan)}


def _ground(plan: Plan) -> dict[str, str]:
    """What is the same for every run of the study. Compare pages show params, not tags: SIMULATED must be among them."""
    version = f"SIMULATED {plan.engine_version}" if plan.simulated else plan.engine_version
    return {"engine_version": version, "model": plan.model, "node": plan.node}


def _span(launches: Sequence[LaunchRecord]) -> tuple[int, int]:
    if not launches:
        return 0, 0
    return int(min(r.started_at for r in launches) * 1000), int(max(r.ended_at for r in launches) * 1000)


def _arm_run(
    plan: Plan,
    arm: Arm,
    result: ArmResult | None,
    launches: Sequence[LaunchRecord],
    finished: bool,
    common: dict[str, str],
    night: NightReport | None = None,
) -> RunView:
    start, end = _span(launches)
    patches = sorted({f"{name}:{value[:12]}" for record in launches for name, value in record.command.patches.items()})
    tags = {
        **common,
        "status": result.status if result else "OPEN",
        "verdict": (result.night or result.verdict or "-") if result else "-",
        "evidence": evidence_word(result, plan.baseline_levels) if result else "-",
        "launches": str(len([record for record in launches if record.outcome == "ok"])),
        "patches": ",".join(patches or arm.patches) or "none",
    }
    if result:
        for name, text in (("failure_class", result.failure_class), ("same_as", result.same_as), ("reason", result.reason)):
            if text:
                tags[name] = text
        if result.verdict in ("BETTER", "WORSE", "MIXED") and not result.night:
            tags["attributed"] = "yes" if result.attributed else "no: a factor is only resolved, not observed"
    status: RunStatus = "RUNNING" if result is None else "FAILED" if result.status in ("FAILED", "REJECTED") else "FINISHED"
    metrics = _arm_metrics(plan, result, launches, finished, night) if result else ()
    return RunView(
        key=f"{plan.study}/arm/{arm.name}",
        kind="arm",
        name=arm.name,
        status=status,
        start_ms=start,
        end_ms=end,
        params=_params(plan, arm.levels),
        metrics=metrics,
        tags=tags,
    )


def _arm_metrics(
    plan: Plan, result: ArmResult, launches: Sequence[LaunchRecord], finished: bool, night: NightReport | None
) -> tuple[MetricView, ...]:
    """At most 25 names. Only the baseline and arms with a verdict carry any: others would sort on top of the list."""
    baseline = result.status == "BASELINE"
    if result.verdict is None and not baseline and not result.night:
        return ()
    concurrency = _concurrency(launches)
    curves = [
        MetricView(name=f"curve/{name}", value=value, step=concurrency[phase])
        for name in _CURVES
        for phase, values in result.values.items()
        if finished and phase.startswith("decode") and phase in concurrency and (value := values.get(name)) is not None
    ]
    curves = [item for item in curves if len([other for other in curves if other.name == item.name]) > 1]
    room = MAX_METRICS - len({item.name for item in curves})
    headline: dict[str, float | None] = _night_changes(result.name, night) if night is not None else {}
    headline["effect_pct"] = 0.0 if baseline else mean_effect(result)
    tested = list(dict.fromkeys((item.phase, item.metric) for item in plan.hypotheses))
    for phase, metric in tested:  # the compare page offers only metrics that all its runs have: the baseline has them too
        found = find(result, phase, metric)
        headline[_effect_name(tested, phase, metric)] = 0.0 if baseline else found.effect_pct if found else None
    wanted = [*tested]
    wanted += [(phase, metric) for metric in _VALUES for phase in result.values if (phase, metric) not in tested]
    for phase, metric in wanted:
        headline[f"{phase_word(phase)}/{metric}"] = result.values.get(phase, {}).get(metric)
    kept = [(name, value) for name, value in headline.items() if value is not None and math.isfinite(value)][:room]
    flat = [MetricView(name=name, value=rounded(value)) for name, value in kept]
    return (*flat, *(item.model_copy(update={"value": rounded(item.value)}) for item in curves if math.isfinite(item.value)))


def _night_changes(arm: str, night: NightReport) -> dict[str, float | None]:
    """`night_pct`: the largest change for the worse against the accepted nights; `c1/night_tpot_p50_pct` and the like: each one."""
    shifts = night.of(arm)
    each = {
        f"{phase_word(shift.quantity.phase)}/night_{shift.quantity.metric.removesuffix('_ms')}_pct": shift.change_pct for shift in shifts
    }
    return {"night_pct": min(each.values()), **each} if each else {}


def _effect_name(tested: Sequence[tuple[str, str]], phase: str, metric: str) -> str:
    """`c16/effect_pct`; with several primary metrics in one phase the metric is in the name."""
    several = len([item for item in tested if item[0] == phase]) > 1
    return f"{phase_word(phase)}/{metric}_effect_pct" if several else f"{phase_word(phase)}/effect_pct"


def _concurrency(launches: Sequence[LaunchRecord]) -> dict[str, int]:
    return {phase.phase: phase.concurrency for record in launches for phase in record.phases if phase.concurrency}


def _launch_run(plan: Plan, record: LaunchRecord, study: StudyPaths, common: dict[str, str]) -> RunView:
    start, end = _span([record])
    found = [
        MetricView(name=f"{phase_word(phase.phase)}/{name}", value=rounded(value))
        for phase in record.phases
        if phase.valid
        for name in _LAUNCH_VALUES
        if (value := phase.metrics.get(name)) is not None and math.isfinite(value)
    ]
    tags = {
        **common,
        "arm": record.arm,
        "outcome": record.outcome,
        "purpose": record.purpose,
        "block": str(record.block),
        "position": str(record.position),
        "host": record.host,
        "engine_build": record.engine.build,
    }
    if record.failure:
        tags |= {"failure_class": record.failure.kind, "failure_line": record.failure.line[:500]}
    folder = study.launch(record.launch).folder
    names = ("server.log", "server.log.gz", "server.log.zst", "launch.json", "server_info.json", "metrics.txt")
    files = [folder / name for name in names] + [study.folder / path for path in record.artifacts.values()]
    files += [study.folder / path for phase in record.phases for path in phase.artifacts.values()]
    return RunView(
        key=f"{plan.study}/launch/{record.launch}",
        kind="launch",
        name=record.launch,
        parent=f"{plan.study}/arm/{record.arm}",
        status="FINISHED" if record.outcome == "ok" else "FAILED",
        start_ms=start,
        end_ms=end,
        metrics=tuple(found[:MAX_METRICS]),
        tags=tags,
        artifacts=tuple((str(path.absolute()), "") for path in dict.fromkeys(files) if path.is_file()),
    )


def _study_run(
    plan: Plan, launches: Sequence[LaunchRecord], decision: Decision | None, study: StudyPaths, finished: bool, common: dict[str, str]
) -> RunView:
    start, end = _span(launches)
    tags = {**common, "status": "FINISHED" if finished else "RUNNING", "mlflow.note.content": study_note(plan, decision, len(launches))}
    if decision and (night := decision.night):
        tags |= {"night": night.outcome, "night_sentence": night.sentence}
        tags["night_changed"] = "; ".join(f"{name}: {old} -> {new}" for name, (old, new) in night.changed.items()) or "nothing"
    if decision and decision.recommendation.arm:
        tags["recommended"] = decision.recommendation.arm
    files = [
        (study.report, ""),
        (study.decision, ""),
        (study.plan, ""),
        (study.config, ""),
        (study.night, ""),
        (study.topology, ""),
        (study.noise_floor, ""),
    ]
    if finished:
        files.append((study.journal, ""))
    if study.plots.is_dir():
        files += [(path, "plots") for path in sorted(study.plots.iterdir()) if path.is_file()]
    gpu_minutes = sum(record.gpu_seconds for record in launches) / 60
    return RunView(
        key=f"{plan.study}/study",
        kind="study",
        name=f"{'SIMULATED ' if plan.simulated else ''}study {plan.study}",
        status="FINISHED" if finished else "RUNNING",
        start_ms=start,
        end_ms=end,
        params=_ground(plan),
        metrics=(
            MetricView(name="study/launches", value=float(len(launches))),
            MetricView(name="study/gpu_minutes", value=rounded(gpu_minutes)),
        ),
        tags=tags,
        artifacts=tuple((str(path.absolute()), folder) for path, folder in files if path.is_file()),
    )
