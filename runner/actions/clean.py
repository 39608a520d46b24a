"""`action=clean`: ends the servers that a dead study left, its own only."""

import json
from pathlib import Path

from runner.config import Settings


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.engines.clean import clean
    from runner.engines.locks import default_lock_folder

    folder = Path(settings.execution.lock_dir) if settings.execution.lock_dir else default_lock_folder()
    report = clean(folder)
    print(json.dumps(report.model_dump(mode="json")) if settings.json_output else str(report))
    return 0 if report.clean else 1
