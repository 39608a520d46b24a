"""What the tracking process leaves beside the records: its log and the report of its last pass."""

from pathlib import Path

from pydantic import ValidationError

from runner.records.files import read_json, write_json
from runner.records.paths import StudyPaths
from runner.tracking.mlflow_tracker import TrackReport


def tracking_log(study: StudyPaths) -> Path:
    return study.folder / "tracking.log"


def report_file(study: StudyPaths) -> Path:
    return study.folder / "tracking-report.json"


def write_report(study: StudyPaths, report: TrackReport) -> None:
    write_json(report_file(study), report.model_dump(mode="json"))


def read_report(study: StudyPaths) -> TrackReport | None:
    """None when there is none yet, or none that can be read."""
    try:
        return TrackReport.model_validate(read_json(report_file(study)))
    except (OSError, ValueError, ValidationError):
        return None
