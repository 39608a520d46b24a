"""`action=plan`: cells, arms, reasons, order, cost. Touches no GPU, writes nothing."""

import json

from runner.actions.ground import find_ground, make_plan
from runner.config import Settings


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.execution.disk import need_of
    from runner.planning.show import plan_json, plan_text

    ground = find_ground(settings, need_engine=False)
    plan = make_plan(ground)
    need = need_of(ground.root.studies, plan.estimate.launches, plan.simulated)
    if settings.json_output:
        print(json.dumps(plan_json(plan) | {"disk": {"bytes": need.total, "launch_bytes": need.launch, "source": need.source}}))
    else:
        print(f"{plan_text(plan)}\ndisk: {need}")
    return 0
