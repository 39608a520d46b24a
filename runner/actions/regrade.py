"""`action=report regrade=true`: grades the evidence again from the saved logs and bodies, by the factor files as they are now.

Records are never rewritten: the new grades stand in the decision and the report, which say so."""

from collections.abc import Sequence
from typing import Any

from runner.config import config_folder, load_factor
from runner.engines.evidence import Sources, engine_chose, judge_evidence
from runner.records.files import read_json
from runner.records.paths import StudyPaths
from runner.records.schema import LaunchRecord
from runner.reporting.excerpts import log_file, read_lines
from runner.spec.factor import FactorSpec

NOTE = "evidence graded again from the saved log"


def regraded(paths: StudyPaths, records: Sequence[LaunchRecord], entries: Sequence[dict[str, Any]]) -> list[LaunchRecord]:
    """The records with new evidence where a log is saved; the others as they are."""
    probe = next((node.get("probe") for entry in entries if entry["kind"] == "nodes" for node in entry["nodes"] if node.get("probe")), None)
    names = {factor for record in records for factor in record.levels}
    factors = {name: FactorSpec.model_validate(load_factor(name, [config_folder()])) for name in names}
    return [_one(paths, record, factors, probe) for record in records]


def _one(paths: StudyPaths, record: LaunchRecord, factors: dict[str, FactorSpec], probe: dict[str, Any] | None) -> LaunchRecord:
    place = log_file(paths, record)
    log = "\n".join(line.rstrip("\n") for line in read_lines(place)) if place is not None else ""
    body = paths.folder / record.artifacts["server_info"] if "server_info" in record.artifacts else None
    if not log or body is None or not body.is_file() or not record.evidence:
        return record
    metrics = paths.launch(record.launch).metrics
    sources = Sources(
        log=log,
        debug="debug" in record.command.argv,
        server_info=read_json(body),
        metrics=metrics.read_text(encoding="utf-8") if metrics.is_file() else None,
        probe=probe,
    )
    version = record.engine.version
    graded = [judge_evidence(factors[name], level, sources, version) for name, level in record.levels.items()]
    chosen = engine_chose(factors, record.levels, sources, version)
    return record.model_copy(update={"evidence": (*graded, *chosen), "notes": (*record.notes, NOTE)})
