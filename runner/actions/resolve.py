"""`action=resolve`: what the installed engine makes of each arm, as JSON."""

import json

from runner.actions.ground import find_ground, make_plan, resolver
from runner.config import Settings
from runner.errors import UserError


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.planning.show import plan_json

    ground = find_ground(settings, need_engine=True)
    if resolver(ground) is None:
        raise UserError(f"engine {ground.kind} has no interpreter to ask; give engine=sglang engine.python=/path/to/bin/python")
    plan = make_plan(ground)
    print(json.dumps(plan_json(plan)))
    return 0
