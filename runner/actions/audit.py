"""`action=audit [json=true]`: for each flag, the gates in the installed engine's source that decide it on this node."""

import json
from typing import Any

from runner.actions.budget import ranks_of
from runner.config import Settings
from runner.errors import UserError


def perform(settings: Settings, overrides: list[str]) -> int:
    if settings.engine.kind == "simulated":
        raise UserError("the simulated engine has no source to audit; give engine=sglang engine.python=/path/to/its/venv/bin/python")
    if settings.engine.kind == "attached":
        raise UserError("an attached server's source is not at hand; audit its interpreter: engine=sglang engine.python=...")
    result = _audit_image(settings) if settings.engine.kind == "container" else _audit(settings, settings.engine.python)
    text = result.pop("text")
    print(json.dumps(result) if settings.json_output else text)
    return 0


def _audit_image(settings: Settings) -> dict[str, Any]:
    """The same for an image: its source is copied out of it and read here."""
    from runner.engines.container import ContainerEngine

    engine = ContainerEngine(settings.engine)
    result = _audit(settings, str(engine.source()), whole=True)
    return {"image": engine.image, **result, "text": f"Image {engine.image}\n{result['text']}"}


def _audit(settings: Settings, source: str | None, whole: bool = False) -> dict[str, Any]:
    from runner.engines.audit.action import audit_engine
    from runner.engines.audit.subjects import SUBJECTS

    options = {**settings.model.options, **settings.engine.options, **settings.pins}
    asked = [subject.name for subject in SUBJECTS if subject.name in settings.factors]
    return audit_engine(
        source,
        capability=settings.node.capability,
        world_size=ranks_of(settings, options),
        link=None if settings.node.link == "none" else settings.node.link,
        flags=asked or None,
        options=options,
        environment={**settings.node.env, **settings.model.env, **settings.engine.env, **settings.pins_env},
        architecture=settings.model.architecture or None,
        python_path=settings.engine.extra_python_path,
        whole=whole,
    )
