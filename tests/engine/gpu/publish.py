"""Turns a study's records into what is committed: no machine paths, every figure from the records.

    python tests/engine/gpu/publish.py STUDY_FOLDER TARGET_FOLDER [--noise STUDY_FOLDER] [--probe probe.json]

Writes decision.json, report.html, launches.jsonl (launch records in the documented schema), study.tar.xz (plan, journal, server logs:
what `action=report regrade=true` reads), noise.jsonl with the A/A study's own decision and report, probe.json and tables.md (the tables that the README of the results quotes)."""

import argparse
import io
import json
import statistics
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.records.decision import Decision
from runner.records.files import read_json, write_text
from runner.records.journal import launches, read_journal
from runner.records.paths import StudyPaths
from runner.records.schema import LaunchRecord
from runner.reporting.privacy import Placeholders

HEADLINES = (("tpot_p50_ms", "TPOT p50, ms"), ("ttft_p50_ms", "TTFT p50, ms"), ("output_tok_s", "output tok/s"))


def lines_of(records: Iterable[LaunchRecord], hide: Placeholders) -> str:
    return "".join(hide.hide(json.dumps(record.model_dump(mode="json", by_alias=True))) + "\n" for record in records)


KEPT = (
    "plan.json",
    "config.json",
    "journal.jsonl",
    "noise_floor.json",
    "launches/*/server.log",
    "launches/*/server_info.json",
    "launches/*/metrics.txt",
)


def pack_study(study: StudyPaths, target: Path, hide: Placeholders) -> None:
    """The files that a judgement needs, without machine paths; the same bytes for the same study."""
    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(path for pattern in KEPT for path in study.folder.glob(pattern)):
            content = hide.hide(path.read_text(encoding="utf-8", errors="replace")).encode()
            entry = tarfile.TarInfo(f"studies/{study.folder.name}/{path.relative_to(study.folder)}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def verdict_table(decision: Decision) -> str:
    rows = ["| arm | status | phase, metric | verdict | effect | interval | launches |", "|---|---|---|---|---|---|---|"]
    for arm in decision.arms:
        if not any(item.effect_pct is not None for item in arm.hypotheses):
            rows.append(f"| {arm.name} | {arm.status} | | | | | {arm.launches} |")
        for item in arm.hypotheses:
            if item.effect_pct is not None and item.low_pct is not None and item.high_pct is not None:
                rows.append(
                    f"| {arm.name} | {arm.status} | {item.phase} {item.metric} | {item.verdict} | {item.effect_pct:+.2f} % "
                    f"| {item.low_pct:+.2f} to {item.high_pct:+.2f} | {item.launches} |"
                )
    return "\n".join(rows)


def launch_table(records: list[LaunchRecord]) -> str:
    phases = list(dict.fromkeys(phase.phase for record in records for phase in record.phases))
    head = ["launch", "outcome", "start s", *[f"{phase} {name.split()[0]}" for phase in phases for _, name in HEADLINES]]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for record in records:
        cells = [record.launch, record.outcome, f"{record.stages.get('start', 0):.1f}"]
        for phase in phases:
            found = record.phase(phase)
            for metric, _ in HEADLINES:
                value = found.metrics.get(metric) if found is not None else None
                cells.append("" if value is None else f"{value:.4g}")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def noise_table(records: list[LaunchRecord]) -> str:
    """Spread of A/A launches: coefficient of variation, with and without the first measured launch of the machine."""
    rows = ["| phase | metric | launches | spread of all, % | without the first, % |", "|---|---|---|---|---|"]
    for phase in dict.fromkeys(item.phase for record in records for item in record.phases):
        for metric, _ in HEADLINES:
            values = [found.metrics[metric] for record in records if (found := record.phase(phase)) and metric in found.metrics]
            rows.append(f"| {phase} | {metric} | {len(values)} | {spread(values):.2f} | {spread(values[1:]):.2f} |")
    return "\n".join(rows)


def spread(values: list[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.mean(values) if len(values) > 2 else float("nan")


def stage_table(records: list[LaunchRecord]) -> str:
    served = [record for record in records if record.outcome == "ok" and record.phases]
    stages = ("start", "describe", "fingerprint", "phases", "evidence", "stop")
    rows = ["| stage | median s | largest s |", "|---|---|---|"]
    for stage in stages:
        values = [record.stages.get(stage, 0.0) for record in served]
        rows.append(f"| {stage} | {statistics.median(values):.2f} | {max(values):.2f} |")
    rest = [record.ended_at - record.started_at - sum(record.stages.get(stage, 0.0) for stage in stages) for record in served]
    rows.append(f"| everything else | {statistics.median(rest):.2f} | {max(rest):.2f} |")
    gaps = [record.idle_gap_s for record in records if record.idle_gap_s is not None and record.idle_gap_s < 60]
    rows.append(f"| between launches | {statistics.median(gaps):.2f} | {max(gaps):.2f} |")
    return "\n".join(rows)


def probe_table(probe: dict[str, Any]) -> str:
    ways = list(probe["algorithms"])
    rows = ["| bytes | " + " | ".join(f"{way}, us" for way in ways) + " |", "|---|" + "---|" * len(ways)]
    points = {way: {point["bytes"]: statistics.median(point["us"]) for point in probe["algorithms"][way]["points"]} for way in ways}
    for size in points[ways[0]]:
        rows.append(f"| {size:,} | " + " | ".join(f"{points[way].get(size, float('nan')):.2f}" for way in ways) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--noise", type=Path)
    parser.add_argument("--probe", type=Path)
    arguments = parser.parse_args()
    study = StudyPaths(arguments.study)
    records = launches(read_journal(study.journal))
    hide = Placeholders(study, records)
    decision = Decision.model_validate(read_json(study.decision))
    target: Path = arguments.target
    write_text(target / "decision.json", hide.hide(study.decision.read_text()))
    write_text(target / "report.html", hide.hide(study.report.read_text()))
    write_text(target / "launches.jsonl", lines_of(records, hide))
    pack_study(study, target / "study.tar.xz", hide)
    parts = [
        "## Verdicts",
        verdict_table(decision),
        "## Launches in time order",
        launch_table(records),
        "## Time of a launch by stage",
        stage_table(records),
    ]
    if arguments.noise is not None:
        quiet = StudyPaths(arguments.noise)
        own = launches(read_journal(quiet.journal))
        hidden = Placeholders(quiet, own)
        write_text(target / "noise.jsonl", lines_of(own, hidden))
        if quiet.report.is_file():
            write_text(target / "noise_decision.json", hidden.hide(quiet.decision.read_text()))
            write_text(target / "noise_report.html", hidden.hide(quiet.report.read_text()))
        measured = [record for record in own if record.purpose == "noise"]
        parts += ["## A/A launches", launch_table(measured), noise_table(measured)]
    if arguments.probe is not None:
        write_text(target / "probe.json", hide.hide(arguments.probe.read_text()))
        parts += ["## All-reduce latency", probe_table(read_json(arguments.probe))]
    write_text(target / "tables.md", "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
