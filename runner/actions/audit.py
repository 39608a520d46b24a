"""`action=audit [json=true]`: for each flag, the gates in the installed engine's source that decide it on this node."""

import json

from runner.actions.budget import ranks_of
from runner.config import Settings
from runner.errors import UserError


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.engines.audit.action import audit_engine
    from runner.engines.audit.subjects import SUBJECTS

    if settings.engine.kind == "simulated":
        raise UserError("the simulated engine has no source to audit; give engine=sglang engine.python=/path/to/its/venv/bin/python")
    if settings.engine.kind == "attached":
        raise UserError("an attached server's source is not at hand; audit its interpreter: engine=sglang engine.python=...")
    options = {**settings.model.options, **settings.engine.options, **settings.pins}
    asked = [subject.name for subject in SUBJECTS if subject.name in settings.factors]
    result = audit_engine(
        settings.engine.python,
        capability=settings.node.capability,
        world_size=ranks_of(settings, options),
        link=None if settings.node.link == "none" else settings.node.link,
        flags=asked or None,
        options=options,
        environment={**settings.node.env, **settings.model.env, **settings.engine.env, **settings.pins_env},
        architecture=settings.model.architecture or None,
        python_path=settings.engine.extra_python_path,
    )
    text = result.pop("text")
    print(json.dumps(result) if settings.json_output else text)
    return 0
