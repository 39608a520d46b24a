"""What the next block holds: the baseline and every arm that is still open, until nothing is, or the budget ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.analysis.failures import given_up, starts
from runner.analysis.futility import HOPELESS, chance_of_verdict
from runner.analysis.hypotheses import Group, groups
from runner.analysis.inert import inert_arms
from runner.analysis.noise import NoiseFloor
from runner.analysis.observations import MEASURING, block_numbers
from runner.analysis.ranking import candidates
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol


@dataclass(frozen=True)
class NextBlock:
    """`arms`: in launch order, baseline included; empty when `finished`. `closed`: arms that are never launched again, and why.
    `decided`: arms that need no more blocks but may still be confirmed. `confirm`: this is a fresh block for the
    recommendation, outside the error control of the study."""

    arms: tuple[str, ...]
    finished: bool
    reason: str
    closed: dict[str, str] = field(default_factory=dict)
    confirm: bool = False
    decided: dict[str, str] = field(default_factory=dict)


def next_block(
    plan: Plan, launches: Sequence[LaunchRecord], protocol: Protocol, noise: NoiseFloor | None, spent_gpu_minutes: float, repairs: int = 0
) -> NextBlock:
    """Called after whole blocks (one look each). Pure: the same records give the same answer. `repairs`: blocks among the launches
    that make up for a lost one; so many blocks more are needed and allowed. The looks are those of the final verdict: an arm that
    misses launches for the loss has no interval yet at the first of them."""
    launches = [launch for launch in launches if launch.outcome != "interrupted"]
    closed = _out(plan, launches, protocol)
    if (why := given_up(launches, plan.baseline, protocol)) is not None and not starts(launches, plan.baseline).served:
        return NextBlock((), True, f"the baseline cannot serve ({why})", closed)
    blocks = block_numbers(launches)
    least = protocol.min_blocks + repairs
    most = max(protocol.max_blocks, protocol.min_blocks) + repairs
    arms = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    tested = {item.arm for item in plan.hypotheses}
    states = groups(plan, launches, protocol, noise, left_out=frozenset(inert_arms(plan, launches)))
    decided: dict[str, str] = {}
    if len(blocks) >= least:
        for arm in arms:
            if arm in closed or arm not in tested:
                continue
            if (done := _settled(states, arm)) is not None:
                decided[arm] = done
    open_arms = [arm for arm in arms if arm not in closed and arm not in decided and (arm in tested or len(blocks) < least)]
    best = {name for name, _ in candidates(states, plan, launches)}
    closed |= {arm: why for arm, why in decided.items() if arm not in best}
    waiting = bool(open_arms) and (bool(tested & set(open_arms)) or len(blocks) < least)
    if not arms and len(blocks) < least:
        waiting = True
    if waiting and len(blocks) < most:
        chosen = _affordable(plan, launches, protocol, spent_gpu_minutes, open_arms, _chances(states, open_arms))
        if chosen or not arms:
            return NextBlock(_in_order(plan, len(blocks), chosen), False, f"{len(open_arms)} arms are open", closed, False, decided)
        reason = f"the budget of {protocol.gpu_minutes:g} GPU minutes is used up; {len(open_arms)} arms stay open"
        return NextBlock((), True, reason, closed, False, decided)
    reason = "every arm is decided, hopeless or out" if not waiting else f"{len(blocks)} blocks are done; {len(open_arms)} arms stay open"
    return _confirmation(plan, launches, protocol, spent_gpu_minutes, states, closed, decided, reason)


def _out(plan: Plan, launches: Sequence[LaunchRecord], protocol: Protocol) -> dict[str, str]:
    closed = {}
    for arm in plan.arms:
        if arm.name == plan.baseline:
            continue
        why = given_up(launches, arm.name, protocol)
        if why is not None:
            closed[arm.name] = why
    for name, other in inert_arms(plan, launches).items():
        closed.setdefault(name, f"inert: same as {other}")
    return closed


def _settled(states: Sequence[Group], arm: str) -> str | None:
    """Why an arm needs no more blocks: each of its hypotheses has a verdict or next to no chance of one."""
    verdicts, hopeless = [], 0
    for state in states:
        if arm not in state.arms:
            continue
        verdict = state.verdict(arm)
        column = state.column(arm)
        if verdict != "UNRESOLVED":
            verdicts.append(verdict)
        elif state.result is not None and column is not None and chance_of_verdict(state.result, state.rules)[0, column] < HOPELESS:
            hopeless += 1
        else:
            return None
    words = ", ".join(f"{verdicts.count(word)} {word}" for word in ("BETTER", "WORSE", "SAME") if word in verdicts)
    if hopeless:
        return f"{words + '; ' if words else ''}{hopeless} hopeless (chance of a verdict under {HOPELESS:.0%})"
    return f"decided: {words}"


def _chances(states: Sequence[Group], arms: Sequence[str]) -> dict[str, float]:
    """Best chance of a verdict among an arm's open hypotheses."""
    chances = dict.fromkeys(arms, 0.0)
    for state in states:
        for arm in arms:
            column = state.column(arm)
            if arm not in state.arms or state.verdict(arm) != "UNRESOLVED":
                continue
            chance = 1.0
            if state.result is not None and column is not None:
                chance = float(chance_of_verdict(state.result, state.rules)[0, column])
            chances[arm] = max(chances[arm], chance)
    return chances


def launch_minutes(plan: Plan, launches: Sequence[LaunchRecord]) -> float:
    """GPU minutes of one measured launch: the mean so far, else the plan's estimate."""
    spent = [launch.gpu_seconds for launch in launches if launch.purpose in (*MEASURING, "confirm") and launch.gpu_seconds > 0]
    if spent:
        return sum(spent) / len(spent) / 60
    return plan.estimate.estimate / plan.estimate.launches if plan.estimate.launches else 0.0


def _affordable(
    plan: Plan, launches: Sequence[LaunchRecord], protocol: Protocol, spent: float, arms: list[str], chances: dict[str, float]
) -> list[str]:
    """The open arms that what is left of the budget pays for, the most promising first; always with the baseline beside them."""
    if protocol.gpu_minutes is None:
        return arms
    cost = launch_minutes(plan, launches)
    room = int((protocol.gpu_minutes - spent) / cost + 1e-9) - 1 if cost > 0 else len(arms)
    if room >= len(arms):
        return arms
    ranked = sorted(arms, key=lambda arm: (-chances.get(arm, 0.0), arms.index(arm)))
    chosen = set(ranked[: max(room, 0)])
    return [arm for arm in arms if arm in chosen]


def _in_order(plan: Plan, index: int, arms: Sequence[str]) -> tuple[str, ...]:
    wanted = {plan.baseline, *arms}
    row = plan.blocks[index % len(plan.blocks)] if plan.blocks else ()
    listed = [name for name in row if name in wanted]
    return tuple(listed + [name for name in (plan.baseline, *arms) if name not in listed])


def _confirmation(
    plan: Plan,
    launches: Sequence[LaunchRecord],
    protocol: Protocol,
    spent: float,
    states: Sequence[Group],
    closed: dict[str, str],
    decided: dict[str, str],
    reason: str,
) -> NextBlock:
    """Fresh blocks for the best arm against the baseline, if there is one, until enough pairs are valid or tries run out."""
    best = candidates(states, plan, launches)
    if not protocol.confirm or not best:
        return NextBlock((), True, reason, closed, False, decided)
    name = best[0][0]
    confirm = [launch for launch in launches if launch.purpose == "confirm"]
    tried = len({launch.block for launch in confirm})
    pairs = {launch.block for launch in confirm if launch.arm == name and launch.outcome == "ok"}
    pairs &= {launch.block for launch in confirm if launch.arm == plan.baseline and launch.outcome == "ok"}
    if len(pairs) >= protocol.confirm_blocks or tried >= 2 * protocol.confirm_blocks:
        return NextBlock((), True, reason, closed, False, decided)
    if not _affordable(plan, launches, protocol, spent, [name], {}):
        return NextBlock((), True, f"{reason}; the budget does not pay for a confirmation", closed, False, decided)
    arms = (plan.baseline, name) if tried % 2 else (name, plan.baseline)
    return NextBlock(arms, False, f"{name} is confirmed in fresh blocks", closed, True, decided)
