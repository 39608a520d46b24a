"""`action=evidence factor=NAME level=LEVEL log=FILE [server_info=FILE] [probe=FILE] [metrics=FILE]`: was it in force? JSON."""

import json
from pathlib import Path

from runner.config import Settings
from runner.errors import UserError


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.engines.evidence.action import evidence_files

    if settings.factor is None or settings.level is None:
        raise UserError("action=evidence needs factor=NAME and level=LEVEL, and log=FILE or server_info=FILE")
    if settings.log is None and settings.server_info is None:
        raise UserError("action=evidence needs at least one of log=FILE and server_info=FILE")
    log, info, probe, metrics = (
        Path(name) if name else None for name in (settings.log, settings.server_info, settings.probe, settings.metrics)
    )
    print(json.dumps(evidence_files(settings.factor, settings.level, log, info, probe, metrics, settings.engine.version)))
    return 0
