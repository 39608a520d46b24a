"""`action=diagnose log=FILE [+context.KEY=VALUE ...]`: the failure class of a server log, as JSON."""

import json
from pathlib import Path

from runner.config import Settings
from runner.errors import UserError


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.engines.diagnose.action import diagnose_file

    if settings.log is None:
        raise UserError("action=diagnose needs log=FILE (a server log), and may take +context.exit_code=137 and the like")
    print(json.dumps(diagnose_file(Path(settings.log), settings.context)))
    return 0
