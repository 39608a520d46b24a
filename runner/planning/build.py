"""The plan of one study: everything that is decided before a GPU second is spent."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runner.config import Settings, config_folder
from runner.engines.overlay.patches import load_patch_set, patch_folders
from runner.errors import UserError, choices, instead
from runner.planning.arms import BASELINE, Merged, Resolve, merge
from runner.planning.candidates import Reads, RuleBook
from runner.planning.cells import Grid, expand
from runner.planning.conditions import version_in, version_of
from runner.planning.estimate import estimate, launch_costs, not_resolvable
from runner.planning.identity import plan_identity
from runner.planning.learned import Learned, learned_from_file
from runner.planning.leave_out import leave_out
from runner.planning.order import blocks
from runner.planning.pins import unpinned
from runner.planning.treatments import selected_phases
from runner.records.metrics import BY_NAME
from runner.records.plan import Arm, Hypothesis, Plan
from runner.records.schema import EngineIdentity
from runner.spec.protocol import Protocol
from runner.spec.workload import PhaseSpec

KINDS = ("sglang", "container", "simulated", "attached")
AA = "A/A"
_AA_ARMS = 3


def build_plan(
    settings: Settings,
    *,
    engine_kind: str,
    engine_version: str,
    identity: EngineIdentity | None = None,
    resolve: Resolve | None = None,
    reads: Reads | None = None,
    absent: Collection[str] = (),
    learned: Learned | Mapping[str, Any] | None = None,
    noise: Mapping[str, Any] | None = None,
    communication: Mapping[str, Any] | None = None,
    study: str = "",
) -> Plan:
    """The plan for one engine kind and version. `resolve` and `reads` ask the installed engine (without them the rules alone
    decide, and the plan says so); `absent` are Python packages that its environment lacks; `learned` (launch costs, also as the node's launch_costs.json) and `noise` (its noise_floor.json)
    come from earlier studies, `communication` is the node's budget as `action=budget` gives it. Pure: touches no GPU, starts nothing but
    what `resolve` starts. Raises UserError for anything that a person wrote wrong, and when the baseline is refused."""
    if engine_kind not in KINDS:
        raise UserError(f"engine kind {engine_kind!r}; choices: {choices(KINDS)}")
    version = version_of(engine_version)
    phases = selected_phases(settings)
    grid = expand(settings)
    _model_is_served(settings, engine_version)
    levels: dict[str, set[str]] = {}
    for cell in (*grid.cells, grid.baseline):
        for name, level in cell.items():
            levels.setdefault(name, set()).add(level)
    book = RuleBook(settings, version, levels, reads, absent)
    merged = merge(grid.cells, grid.baseline, book, resolve)
    merged, left_out = leave_out(merged, _hypotheses(settings.protocol, merged.arms, phases), settings, communication)
    arms, notes = _arms(settings, merged, engine_kind, noise)
    _patches_are_there(arms)
    _attached_serves_one(engine_kind, arms)
    _required_are_arms(settings.protocol, arms)
    hypotheses = _hypotheses(settings.protocol, arms, phases)
    rows = _rows(settings, arms)
    if learned is not None and not isinstance(learned, Learned):
        learned = learned_from_file(learned, engine_build=identity.build if identity else None)
    costs = launch_costs(settings, engine_kind, phases, learned)
    cost, cost_notes = estimate(settings, engine_kind, arms, rows, costs)
    blocked, noise_notes = not_resolvable(settings, hypotheses, arms, costs, noise, engine_kind)
    return Plan(
        study=study or settings.study.name or settings.study.experiment or "study",
        experiment=settings.study.experiment,
        question=settings.study.question,
        engine_kind=engine_kind,
        engine_version=engine_version,
        simulated=engine_kind == "simulated" or (identity is not None and identity.simulated),
        node=settings.node.name,
        model=settings.model.name,
        baseline=BASELINE,
        baseline_levels=arms[0].levels,
        factors=grid.factors,
        raw_cells=grid.raw,
        cells=merged.cells,
        arms=arms,
        phases=tuple(phases),
        hypotheses=hypotheses,
        blocks=rows,
        estimate=cost,
        not_resolvable=blocked,
        unconfirmed=(*unpinned(settings.node, version), *merged.unconfirmed),
        notes=(*_grid_notes(grid, resolve is not None, engine_kind), *_trust(settings, arms), *left_out, *notes, *cost_notes, *noise_notes),
        seed=settings.protocol.seed,
        identity=plan_identity(settings, engine_kind, engine_version, identity, arms),
    )


def _model_is_served(settings: Settings, engine_version: str) -> None:
    model = settings.model
    version = version_of(engine_version)
    if model.commands and not any(version_in(version, versions, f"model {model.name}: commands") for versions in model.commands):
        raise UserError(
            f"model {model.name} has no command for engine {engine_version}; it has some for: {', '.join(model.commands)}; "
            "choose another engine.version or add one under commands: in its file"
        )


def _patches_are_there(arms: Sequence[Arm]) -> None:
    """A patch set that is missing or unreadable is said now, not hours later at the first launch of its arm. Raises UserError."""
    folders = patch_folders(config_folder().parent)
    for name in dict.fromkeys(patch for arm in arms for patch in arm.patches):
        load_patch_set(name, folders)


def _arms(settings: Settings, merged: Merged, engine_kind: str, noise: Mapping[str, Any] | None) -> tuple[tuple[Arm, ...], tuple[str, ...]]:
    """The arms to launch: A/A copies of the baseline instead of the grid's (`aa`), or one more where the node's noise is unknown."""
    base = merged.arms[0]
    if settings.aa:
        count = len(merged.arms) - 1 or _AA_ARMS
        copies = [_copy_of(base, f"{AA} {number}") for number in range(1, count + 1)]
        return (base, *copies), (f"A/A study: {count + 1} launches of the baseline a block",)
    wanted = settings.protocol.aa_arm == "without_noise_floor" and noise is None and engine_kind in ("sglang", "container")
    if wanted and len(merged.arms) > 1:
        note = f"no noise floor for this node: the first {settings.protocol.min_blocks} blocks hold an {AA} pair (the baseline twice)"
        return (*merged.arms, _copy_of(base, AA)), (note,)
    return merged.arms, ()


def _copy_of(base: Arm, name: str) -> Arm:
    return base.model_copy(update={"name": name, "notes": ("the baseline again: what differs is noise",)})


def _rows(settings: Settings, arms: Sequence[Arm]) -> tuple[tuple[str, ...], ...]:
    protocol = settings.protocol
    names = [arm.name for arm in arms]
    count = max(protocol.min_blocks, protocol.max_blocks)
    if AA in names:
        names.remove(AA)
        return blocks(names, count, protocol.seed, doubled=AA, doubled_blocks=protocol.min_blocks)
    return blocks(names, count, protocol.seed)


def _hypotheses(protocol: Protocol, arms: Sequence[Arm], phases: Mapping[str, PhaseSpec]) -> tuple[Hypothesis, ...]:
    """`protocol.primary` x arms x phases, each once; A/A arms have none. Raises UserError for a metric that cannot be judged."""
    judged = [arm for arm in arms[1:] if not arm.name.startswith(AA)]
    found: dict[tuple[str, str, str], Hypothesis] = {}
    for primary in protocol.primary:
        known = [name for name, item in BY_NAME.items() if item.higher_is_better is not None and item.margin is not None]
        if primary.metric not in known:
            raise UserError(f"protocol.primary: {primary.metric!r} is no metric that can be judged{instead(primary.metric, known)}")
        matching = [
            name for name, phase in phases.items() if (not primary.phases or name in primary.phases) and primary.kind in (None, phase.kind)
        ]
        for arm in judged:
            for phase in matching:
                found[arm.name, phase, primary.metric] = Hypothesis(arm=arm.name, phase=phase, metric=primary.metric)
    if judged and not found:
        raise UserError(f"protocol.primary matches none of the phases {', '.join(phases)}: nothing would be judged")
    return tuple(found.values())


def _attached_serves_one(engine_kind: str, arms: Sequence[Arm]) -> None:
    if engine_kind == "attached" and len(arms) > 1:
        raise UserError(
            "engine=attached measures a server that somebody else runs and may not be restarted, so it has one arm: "
            f"leave grid: and include: empty (this experiment has {len(arms)} arms)"
        )


def _required_are_arms(protocol: Protocol, arms: Sequence[Arm]) -> None:
    names = [arm.name for arm in arms]
    for name in protocol.required:
        if name not in names:
            raise UserError(f"protocol.required: {name!r} is no arm of this plan{instead(name, names)}")


def _trust(settings: Settings, arms: Sequence[Arm]) -> tuple[str, ...]:
    """Where the engine is told to run code that lies beside the weights, whoever reads the plan must see it."""
    wide = "trust-remote-code"
    given = [arm.name for arm in arms if arm.options.get(wide)]
    if not given:
        return ()
    where = "every arm" if len(given) == len(arms) else ", ".join(given)
    return (f"--{wide} is ON for {where}: the engine runs Python code from the folder of model {settings.model.name}",)


def _grid_notes(grid: Grid, resolved: bool, engine_kind: str) -> tuple[str, ...]:
    if engine_kind == "attached":
        return (*grid.notes, "an attached server is measured as it runs: the runner pins nothing, and asks of it only engine.options")
    by_rules = "planned by the rules alone, without asking an installed engine"
    return grid.notes if resolved else (*grid.notes, by_rules)
