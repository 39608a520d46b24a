"""A launch's record without what only reports and audits read: what a driver keeps of each of a thousand launches."""

from runner.records.schema import Command, LaunchRecord


def lean(record: LaunchRecord) -> LaunchRecord:
    """The record as the scheduler and the looks need it. Left out: the resolved configuration (by far the largest part), command
    line, stages, artifacts and the fingerprint. The whole record is in the journal; verdicts and reports are made from there."""
    phases = tuple(phase.model_copy(update={"artifacts": {}}) if phase.artifacts else phase for phase in record.phases)
    command = Command(argv=(), patches=record.command.patches)
    return record.model_copy(
        update={"resolved": {}, "command": command, "stages": {}, "artifacts": {}, "fingerprint": None, "notes": (), "phases": phases}
    )
