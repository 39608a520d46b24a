"""`action=plan`: cells, arms, reasons, order, cost. Touches no GPU, writes nothing."""

import json

from runner.actions.ground import find_ground, make_plan
from runner.config import Settings


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.planning.show import plan_json, plan_text

    ground = find_ground(settings, need_engine=False)
    plan = make_plan(ground)
    print(json.dumps(plan_json(plan)) if settings.json_output else plan_text(plan))
    return 0
