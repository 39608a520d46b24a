"""`action=report [study.name=NAME|latest]`: judges the records again, prints the table, writes the report."""

import json

from runner.actions.ground import root_of
from runner.actions.settle import decide
from runner.config import Settings
from runner.execution.study import named_study
from runner.records.files import read_json
from runner.spec.protocol import Protocol


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.reporting.html import write_report
    from runner.reporting.terminal import print_decision

    paths = named_study(root_of(settings), settings.study.name, settings.study.experiment)
    protocol = Protocol.model_validate(read_json(paths.config)["protocol"]) if paths.config.exists() else settings.protocol
    plan, records, decision = decide(paths, protocol, regrade=settings.regrade)
    write_report(paths, decision, plan, records)
    if settings.json_output:
        print(json.dumps(decision.model_dump(mode="json", by_alias=True)))
    else:
        print_decision(decision, plan, paths)
    return 0
