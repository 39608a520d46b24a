"""`action=accept study.name=NAME|latest`: the node's baseline begins with that night from now on."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from runner.actions.ground import root_of
from runner.actions.history import EXPERIMENT, History, history_path, load_history, save_history
from runner.analysis.nightly import baseline_of, what_changed
from runner.config import Settings
from runner.errors import UserError, choices
from runner.records.files import read_json
from runner.records.metrics import BY_NAME
from runner.records.night import Night
from runner.records.paths import RootPaths


def perform(settings: Settings, overrides: list[str]) -> int:
    root = root_of(settings)
    name = settings.study.name
    if name is None:
        raise UserError("action=accept needs study.name=NAME of a night, or study.name=latest")
    history, night = find_night(root, settings, name)
    if not night.values:
        raise UserError(f"night {night.study} measured nothing ({night.outcome}); a baseline cannot begin with it")
    before = _baseline(history, night)
    accepted = history.accepted(night.study)
    save_history(root, accepted)
    after = _baseline(accepted, night)
    rows = moved(before, after)
    result = {
        "node": history.node,
        "simulated": history.simulated,
        "accepted": night.study,
        "baseline_before": [each.study for each in before],
        "baseline_after": [each.study for each in after],
        "changed": what_changed(before[-1].identity, night.identity) if before else {},
        "moved": rows,
    }
    print(json.dumps(result) if settings.json_output else accept_text(result))
    return 0


def find_night(root: RootPaths, settings: Settings, name: str) -> tuple[History, Night]:
    """The history that has the night. The study's own plan says which node; without it the settings do. Raises UserError."""
    if name == "latest":
        histories = [load_history(root, settings.node.name, simulated) for simulated in (False, True)]
        found = [(history, history.nights[-1]) for history in histories if history.nights]
        if not found:
            raise UserError(f"node {settings.node.name} has no nights yet; run one: python -m runner +experiment=nightly")
        return max(found, key=lambda pair: pair[1].at)
    plan = root.study(name).plan
    if plan.is_file():
        words = read_json(plan)
        histories = [load_history(root, words["node"], bool(words["simulated"]))]
    else:
        histories = [load_history(root, settings.node.name, simulated) for simulated in (False, True)]
    for history in histories:
        night = history.night(name)
        if night is not None:
            return history, night
    known = [night.study for history in histories for night in history.nights]
    where = history_path(root, histories[0].node, histories[0].simulated)
    raise UserError(f"{name} is no night of node {histories[0].node} ({where}); choices: {choices(known)}")


def _baseline(history: History, night: Night) -> list[Night]:
    mine = night.identity.get(EXPERIMENT)
    return baseline_of([each for each in history.nights if each.identity.get(EXPERIMENT) == mine])


def moved(before: Sequence[Night], after: Sequence[Night]) -> list[dict[str, Any]]:
    """Quantity by quantity: mean of the old and of the new baseline, and the change in percent, positive an improvement."""
    rows = []
    old, new = _means(before), _means(after)
    for name in sorted({*old, *new}):
        arm, phase, metric = name.split("|")
        was, now = old.get(name), new.get(name)
        change = None
        if was is not None and now is not None:
            known = BY_NAME.get(metric)
            sign = 1 if known is not None and known.higher_is_better else -1
            change = round(100 * ((now / was) ** sign - 1), 2)
        rows.append({"arm": arm, "phase": phase, "metric": metric, "before": was, "after": now, "change_pct": change})
    return rows


def _means(nights: Sequence[Night]) -> dict[str, float]:
    names = {name for night in nights for name in night.values}
    return {
        name: float(
            f"{statistics.geometric_mean([statistics.geometric_mean(night.values[name]) for night in nights if name in night.values]):.5g}"
        )
        for name in names
    }


def accept_text(result: dict[str, Any]) -> str:
    mark = "SIMULATED " if result["simulated"] else ""
    lines = [f"{mark}node {result['node']}: the baseline begins with {result['accepted']} from now on"]
    lines.append(f"before: {', '.join(result['baseline_before']) or 'none'}")
    lines.append(f"after:  {', '.join(result['baseline_after'])}")
    lines += [f"changed: {name}: {old} -> {new}" for name, (old, new) in result["changed"].items()]
    for row in result["moved"]:
        change = "-" if row["change_pct"] is None else f"{row['change_pct']:+.2f} %"
        lines.append(f"  {row['arm']}, {row['phase']}, {row['metric']}: {row['before'] or '-'} -> {row['after'] or '-'} ({change})")
    if len(result["baseline_after"]) < 4:
        lines.append("the next nights only learn, until 4 baseline nights are there")
    return "\n".join(lines)
