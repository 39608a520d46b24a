"""The parts of a report as plain data for the template: no HTML in here."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.records import words
from runner.records.decision import ArmResult, Decision
from runner.records.files import read_json
from runner.records.journal import read_journal
from runner.records.paths import StudyPaths
from runner.records.plan import Plan
from runner.records.schema import Evidence, LaunchRecord
from runner.reporting.excerpts import Excerpt, excerpt_of, failure_excerpt


@dataclass(frozen=True)
class Proof:
    """One line of evidence, with the log around it where there is a log."""

    evidence: Evidence
    excerpt: Excerpt | None = None


@dataclass(frozen=True)
class ArmRow:
    """One arm of the verdict table."""

    arm: ArmResult
    outcome: str
    cells: tuple[tuple[str, str], ...]
    proofs: tuple[Proof, ...]
    reasons: tuple[str, ...]
    evidence: str = "-"
    failure: Excerpt | None = None


@dataclass(frozen=True)
class Patch:
    name: str
    hash: str
    diff: str


@dataclass(frozen=True)
class Commands:
    """Shell text to repeat a launch and the study by hand."""

    arm: str
    launch: str
    study: str
    recommended: str = ""


@dataclass(frozen=True)
class Provenance:
    rows: tuple[tuple[str, str], ...]
    packages: tuple[tuple[str, str], ...]
    topology: str
    patches: tuple[Patch, ...]
    files: tuple[str, ...] = field(default_factory=tuple)


def arm_rows(decision: Decision, launches: Sequence[LaunchRecord], study: StudyPaths) -> list[ArmRow]:
    """Every arm with its primary verdicts, evidence and reasons, baseline first."""
    keys = words.hypothesis_keys(decision)
    rows = []
    for arm in words.ordered(decision):
        own = [record for record in launches if record.arm == arm.name]
        found = [words.find(arm, phase, metric) for phase, metric in keys]
        failed = next((record for record in reversed(own) if record.failure is not None), None)
        rows.append(
            ArmRow(
                arm=arm,
                outcome=words.outcome(arm),
                cells=tuple((words.interval(item), item.verdict) if item else ("", "") for item in found),
                proofs=tuple(Proof(item, excerpt_of(study, own, item)) for item in arm.evidence),
                reasons=tuple(_reasons(arm, own)),
                evidence=words.evidence_word(arm, words.baseline_levels(decision)),
                failure=failure_excerpt(study, failed) if failed is not None and arm.failed_launches else None,
            )
        )
    return rows


def _reasons(arm: ArmResult, own: Sequence[LaunchRecord]) -> list[str]:
    reasons = [arm.reason] if arm.reason else []
    if arm.same_as and arm.same_as not in arm.reason:
        reasons.append(f"same as {arm.same_as}")
    if arm.verdict in ("BETTER", "WORSE", "MIXED") and not arm.attributed and not arm.night:
        reasons.append("A factor is only resolved, never observed: the effect is real, but not shown to be the flag's doing.")
    unseen = [item for item in arm.hypotheses if item.verdict == "UNRESOLVED" and item.could_see_pct is not None]
    if unseen and not arm.night:
        reasons.append("The study could have seen: " + ", ".join(f"{item.phase} {item.could_see_pct:.1f} %" for item in unseen))
    for item in arm.hypotheses:
        adjusted, effect = item.effect_adjusted_pct, item.effect_pct
        if adjusted is not None and effect is not None and abs(adjusted - effect) >= 0.05:
            reasons.append(f"{item.phase}: corrected for early stopping {words.signed(adjusted)} %")
    if arm.failed_launches and arm.start_success is not None:
        low, high = arm.start_success_low, arm.start_success_high
        span = f" [{100 * low:.0f}, {100 * high:.0f}]" if low is not None and high is not None else ""
        kinds = Counter(record.failure.kind for record in own if record.failure is not None)
        reasons.append(
            f"starts that succeed: {100 * arm.start_success:.0f} %{span}; {', '.join(f'{n} x {kind}' for kind, n in kinds.items())}"
        )
    return [*reasons, *arm.notes]


def commands(decision: Decision, plan: Plan, launches: Sequence[LaunchRecord], study: StudyPaths) -> Commands:
    """One launch of the recommended arm (else the baseline) as it was started, and the command of the study."""
    wanted = decision.recommendation.arm or decision.baseline
    served = [record for record in launches if record.outcome == "ok" and record.command.argv]
    served.sort(key=lambda record: record.purpose not in ("measure", "confirm", "noise"))
    record = next((record for record in served if record.arm == wanted), next(iter(served), None))
    launch = ""
    if record is not None:
        lines = [f"cd {shlex.quote(record.command.cwd)} &&"] if record.command.cwd else []
        lines += [f"{name}={shlex.quote(value)}" for name, value in record.command.env.items()]
        lines.append(_wrapped(record.command.argv))
        launch = " \\\n".join(lines)
    advice = decision.recommendation
    recommended = " \\\n".join([*(f"{name}={shlex.quote(value)}" for name, value in advice.env.items()), _wrapped(advice.command)])
    return Commands(
        arm=record.arm if record else wanted,
        launch=launch,
        study=_study_command(plan, study),
        recommended=recommended if advice.command else "",
    )


def _study_command(plan: Plan, study: StudyPaths) -> str:
    """The overrides that were typed are kept in the study's configuration."""
    overrides = [f"+experiment={plan.experiment}"]
    try:
        typed = read_json(study.config).get("overrides")
    except (OSError, ValueError, AttributeError):
        typed = None
    if isinstance(typed, list) and typed:
        overrides = [str(item) for item in typed]
    return "python -m runner " + " ".join(shlex.quote(item) for item in overrides)


def _wrapped(argv: Sequence[str]) -> str:
    """argv as shell text, one option a line."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(lines)


def telemetry_rows(decision: Decision, launches: Sequence[LaunchRecord]) -> list[dict[str, str]]:
    """Clocks, power, temperature and the busiest link direction (mean of a phase over its GPUs) by arm, over all its phases."""
    rows = []
    for arm in words.ordered(decision):
        found = [phase.telemetry for record in launches if record.arm == arm.name for phase in record.phases]
        clocks = [item.sm_clock_mhz_p50 for item in found if item.sm_clock_mhz_p50 is not None]
        power = [item.power_w_mean for item in found if item.power_w_mean is not None]
        heat = [item.temperature_c_max for item in found if item.temperature_c_max is not None]
        memory = [item.memory_used_gb_max for item in found if item.memory_used_gb_max is not None]
        if not clocks and not power:
            continue
        links = {
            "PCIe": [(item.pcie_tx_gb_s, item.pcie_rx_gb_s) for item in found],
            "NVLink": [(item.nvlink_tx_gb_s, item.nvlink_rx_gb_s) for item in found],
        }
        busiest = {
            name: max((value for pair in pairs for value in pair if value is not None), default=None) for name, pairs in links.items()
        }
        throttled = sorted({reason for item in found for reason in item.throttle_reasons})
        rows.append(
            {
                "arm": arm.name,
                "clock": f"{min(clocks):.0f} - {max(clocks):.0f}" if clocks else "-",
                "power": f"{min(power):.0f} - {max(power):.0f}" if power else "-",
                "heat": f"{max(heat):.0f}" if heat else "-",
                "memory": f"{max(memory):.1f}" if memory else "-",
                "links": ", ".join(f"{name} {value:.2f}" for name, value in busiest.items() if value is not None) or "-",
                "throttled": ", ".join(throttled) or "none",
            }
        )
    return rows


def noise_rows(decision: Decision) -> list[dict[str, str]]:
    """The noise floor as a flat table, whatever its depth: one row an entry."""
    noise = decision.noise
    entries: list[tuple[str, Any]] = [("", entry) for entry in noise.get("rows", [])] or list(noise.items())
    rows = []
    for name, entry in entries:
        if isinstance(entry, dict):
            rows.append({**({"metric": name} if name else {}), **{key: _plain(value) for key, value in entry.items()}})
        elif not isinstance(entry, list):
            rows.append({"metric": name, "value": _plain(entry)})
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in names} for row in rows]


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return words.number(value, 3)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    return "-" if value is None else str(value)


def invalid_counts(launches: Sequence[LaunchRecord]) -> list[tuple[str, int]]:
    """Reasons for which a phase of a launch was not counted, most frequent first; numbers in a reason are taken out."""
    import re

    reasons = Counter(
        re.sub(r"\d+(\.\d+)?", "N", reason)
        for record in launches
        for phase in record.phases
        if not phase.valid
        for reason in phase.invalid_reasons
    )
    return reasons.most_common()


def provenance(plan: Plan, decision: Decision, launches: Sequence[LaunchRecord], study: StudyPaths) -> Provenance:
    """Who measured, with what: identity of plan, engine, hosts, patches with diffs, seeds."""
    engines = {(record.engine.kind, record.engine.version, record.engine.build) for record in launches}
    packages: dict[str, str] = {}
    for record in launches:
        packages |= record.engine.packages
    rows = [("study", plan.study), ("experiment", plan.experiment), ("model", plan.model), ("node", plan.node)]
    rows += [("engine", f"{kind} {version}, build {build}") for kind, version, build in sorted(engines)]
    rows += _machines(plan, study)
    rows.append(("prompts", prompts_sent(launches)))
    rows += [("hosts", ", ".join(sorted({record.host for record in launches if record.host}))), ("seed", str(plan.seed))]
    rows += [(f"identity: {name.replace('_', ' ')}", value) for name, value in plan.identity.items()]
    rows += [(f"method: {name.replace('_', ' ')}", _plain(value)) for name, value in decision.method.items()]
    rows.append(("measures version", ", ".join(sorted({str(record.measures) for record in launches}))))
    rows.append(("records", f"plan schema {plan.schema_version}, decision schema {decision.schema_version}"))
    return Provenance(
        rows=tuple((name, value) for name, value in rows if value),
        packages=tuple(sorted(packages.items())),
        topology=_topology(study),
        patches=tuple(_patches(launches, study)),
    )


def prompts_sent(launches: Sequence[LaunchRecord]) -> str:
    """What was sent in which phases. Random ids never hit special tokens and route experts like no text does, so that is said."""
    phases: dict[str, dict[str, None]] = {}
    for record in launches:
        for phase in record.phases:
            phases.setdefault(phase.dataset, {})[phase.phase] = None
    parts = []
    for dataset, names in phases.items():
        what = "random token ids, which say little of MoE routing" if dataset == "random_ids" else dataset
        parts.append(f"{', '.join(names)}: {what}")
    return "; ".join(parts)


def _machines(plan: Plan, study: StudyPaths) -> list[tuple[str, str]]:
    """Driver and GPUs as the node workers found them, and the runner's own revision."""
    entries = read_journal(study.journal) if study.journal.exists() else []
    facts = words.node_facts(entries)
    drivers = sorted({str(item["driver"]) for item in facts if item.get("driver")})
    gpus = [f"{item.get('host', '?')}: {len(item['gpus'])}" for item in facts if item.get("gpus")]
    return [("code revision", words.code_revision(plan, entries)), ("GPU driver", ", ".join(drivers)), ("GPUs visible", ", ".join(gpus))]


def _topology(study: StudyPaths) -> str:
    return study.topology.read_text(encoding="utf-8", errors="replace")[:20000] if study.topology.is_file() else ""


def _patches(launches: Sequence[LaunchRecord], study: StudyPaths) -> list[Patch]:
    hashes: dict[str, str] = {}
    for record in launches:
        hashes |= record.command.patches
    return [Patch(name, value, _diff(name, study)) for name, value in sorted(hashes.items())]


def _diff(name: str, study: StudyPaths) -> str:
    """The diff text of a patch set, from the study's own copy or from `experiments/*/patches`."""
    repository = Path(__file__).resolve().parents[2]
    places = [study.folder / "patches" / Path(name).name, *sorted(repository.glob(f"experiments/*/patches/{Path(name).name}"))]
    for place in places:
        files = sorted(path for pattern in ("*.patch", "*.diff") for path in place.glob(pattern)) if place.is_dir() else []
        if place.is_file():
            files = [place]
        if files:
            return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)[:60000]
    return ""
