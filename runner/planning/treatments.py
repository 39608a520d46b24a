"""What a level sets for one engine version, and the options, variables and patches that a cell of levels comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from runner.config import Settings
from runner.errors import UserError, instead
from runner.planning.conditions import Clause, holds, parse, subject_of, version_in
from runner.planning.pins import baseline_pins, name_in, option_value
from runner.planning.values import value_of
from runner.spec.factor import Condition, FactorSpec, Level, Treatment, VersionedTreatment
from runner.spec.workload import PhaseSpec


@dataclass(frozen=True)
class Refusal:
    """Why a level cannot be in a cell. `sentence`: the engine's own words where they are known."""

    factor: str
    level: str
    reason: str
    sentence: str = ""

    def __str__(self) -> str:
        return f"{self.factor}={self.level}: {self.reason}"


@dataclass(frozen=True)
class Check:
    """A condition whose truth depends on the cell. `wanted`: False for a conflict."""

    factor: str
    level: str
    condition: Condition
    subject: str
    clauses: tuple[Clause, ...]
    wanted: bool
    where: str


@dataclass(frozen=True)
class LevelPlan:
    """One level of one factor for one engine version."""

    factor: str
    level: str
    reference: bool
    treatment: Treatment
    refusals: tuple[Refusal, ...] = ()
    checks: tuple[Check, ...] = ()
    bundle: bool = False
    expect: str = ""
    value: Any = None
    unconfirmed: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.treatment.options or self.treatment.env or self.treatment.patches)


@dataclass
class Effective:
    """What a cell's launch gets. `clashes`: two levels that both set one thing."""

    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    clashes: tuple[Refusal, ...] = ()


def file_of(factor: str) -> str:
    return f"factor/{factor}.yaml"


def selected_phases(settings: Settings) -> dict[str, PhaseSpec]:
    """The experiment's phases in its order (all of the workload when it names none). Raises UserError with the choices."""
    known = settings.workload.phases
    for name in settings.phases:
        if name not in known:
            raise UserError(f"phases: workload {settings.workload.name} has no phase {name!r}{instead(name, known)}")
    names = settings.phases or tuple(known)
    if not names:
        raise UserError(f"workload {settings.workload.name} has no phases")
    return {name: known[name] for name in names}


def level_plan(factor: FactorSpec, name: str, level: str, version: Version, facts: Mapping[str, Mapping[str, Any]]) -> LevelPlan:
    """The level for this version on this node and model (`facts`: "node" and "model" to values). Raises UserError when no
    version has the level."""
    where = f"grid.{name}"
    spec = factor.levels.get(level)
    if spec is None and factor.value_rule is None:
        raise UserError(f"{where}: factor {name} has no level {level!r}{instead(level, factor.levels)}; levels are in {file_of(name)}")
    spec = spec or Level()
    treatment: Treatment = next(
        (variant for variant in spec.variants if version_in(version, variant.engine, f"{file_of(name)}, levels.{level}.variants")), spec
    )
    expect = treatment.expect if isinstance(treatment, VersionedTreatment) and treatment.expect is not None else spec.expect
    value = None
    if factor.value_rule is not None:
        value = value_of(factor.value_rule, level, where)
        treatment = _with_value(factor, name, level, value, treatment)
    treatment = Treatment(
        options={name_in(version, key): item for key, item in treatment.options.items()}, env=treatment.env, patches=treatment.patches
    )
    reference = level == factor.reference_level
    conditions = [(condition, True, f"{file_of(name)}, levels.{level}.requires") for condition in spec.requires]
    conditions += [(condition, False, f"{file_of(name)}, levels.{level}.conflicts") for condition in spec.conflicts]
    if not reference:
        # A factor's own conditions on other factors say where it applies at all (cells.py), not which level is refused.
        conditions += [(c, True, f"{file_of(name)}, requires") for c in factor.requires if c.factor is None]
        conditions += [(c, False, f"{file_of(name)}, conflicts") for c in factor.conflicts]
    refusals, checks, unconfirmed = [], [], []
    for condition, wanted, place in conditions:
        if condition.when is not None and not version_in(version, condition.when, f"{place}.when"):
            continue
        subject, text = subject_of(condition)
        if subject in ("factor", "arm"):
            checks.append(Check(name, level, condition, subject, parse(text, f"{place}: {subject}"), wanted, place))
            continue
        broken = _fact_holds(subject, text, version, facts, place) is not wanted
        if broken and not condition.confirmed:
            unconfirmed.append(f"{name}={level}: {_because(condition, subject, text, wanted, facts, version)} (not confirmed)")
        elif broken:
            refusals.append(Refusal(name, level, _because(condition, subject, text, wanted, facts, version), condition.sentence))
    return LevelPlan(
        factor=name,
        level=level,
        reference=reference,
        treatment=treatment,
        refusals=tuple(refusals),
        checks=tuple(checks),
        bundle=spec.bundle,
        expect=expect,
        value=value,
        unconfirmed=tuple(unconfirmed),
    )


def _with_value(factor: FactorSpec, name: str, level: str, value: Any, treatment: Treatment) -> Treatment:
    if treatment.options or treatment.env or treatment.patches:
        return treatment
    if factor.value_option is not None:
        return Treatment(options={factor.value_option: level if factor.value_rule == "power_of_two_bytes" else value})
    if factor.value_env is not None:
        return Treatment(env={factor.value_env: level})
    raise UserError(f"{file_of(name)}: value_rule needs value_option or value_env, the thing that a level sets")


def _fact_holds(subject: str, text: str, version: Version, facts: Mapping[str, Mapping[str, Any]], where: str) -> bool:
    if subject == "engine":
        return version_in(version, text, f"{where}: engine")
    place = f"{where}: {subject}"
    return holds(parse(text, place), facts[subject], place)


def _because(condition: Condition, subject: str, text: str, wanted: bool, facts: Mapping[str, Mapping[str, Any]], version: Version) -> str:
    if condition.why or condition.sentence:
        return condition.why or condition.sentence
    verb = "needs" if wanted else "does not go with"
    if subject == "engine":
        return f"{verb} engine {text} (this one: {version})"
    names = {clause.name for clause in parse(text, subject)}
    here = ", ".join(f"{name} = {facts[subject].get(name)}" for name in sorted(names))
    return f"{verb} {subject} {text} (this {subject}: {here})"


def check_refusal(check: Check, levels: Mapping[str, str], options: Mapping[str, Any]) -> Refusal | None:
    """The refusal of a condition that depends on the cell, or None when the cell passes."""
    where = f"{check.where}: {check.subject}"
    values: Mapping[str, Any] = (
        levels if check.subject == "factor" else {clause.name: option_value(options, clause.name) for clause in check.clauses}
    )
    if check.subject == "factor" and not check.wanted and not all(clause.name in values for clause in check.clauses):
        return None
    if holds(check.clauses, values, where, closed=False) is check.wanted:
        return None
    condition = check.condition
    if condition.why or condition.sentence:
        reason = condition.why or condition.sentence
    else:
        here = ", ".join(f"{clause.name} = {values.get(clause.name)}" for clause in check.clauses)
        what = "and".join(f" {clause} " for clause in check.clauses).strip()
        reason = f"{'needs' if check.wanted else 'does not go with'} {what} (here: {here})"
    return Refusal(check.factor, check.level, reason, condition.sentence)


def common_treatment(settings: Settings, version: Version, phases: Mapping[str, PhaseSpec]) -> Treatment:
    """What every arm gets before its levels: pins of the runner, then node, model (with its command for this version), the
    experiment's pins, and `engine.options`; later ones win, null removes. A server that somebody else runs is measured as it runs:
    of it only `engine.options` are asked."""
    if settings.engine.kind == "attached":
        return Treatment(options={name_in(version, name): value for name, value in settings.engine.options.items() if value is not None})
    model = settings.model
    pinned, pinned_env = baseline_pins(settings.node, model, version, phases)
    layers: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [(pinned, pinned_env), ({}, settings.node.env)]
    if model.load_format is not None:
        layers.append(({"load-format": model.load_format}, {}))
    layers.append((model.options, model.env))
    where = f"model {model.name}: commands"
    layers += [(part.options, part.env) for versions, part in model.commands.items() if version_in(version, versions, where)]
    layers += [(settings.pins, settings.pins_env), (settings.engine.options, settings.engine.env)]
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    for some_options, some_env in layers:
        options.update({name_in(version, name): value for name, value in some_options.items()})
        env.update({name: str(value) for name, value in some_env.items()})
    return Treatment(options={name: value for name, value in options.items() if value is not None}, env=env)


def effective(common: Treatment, plans: Sequence[LevelPlan]) -> Effective:
    """The common treatment with the cell's levels over it; reference levels first, so that another level may undo them."""
    result = Effective(options=dict(common.options), env=dict(common.env))
    patches: list[str] = list(common.patches)
    owners: dict[tuple[str, str], LevelPlan] = {}
    clashes: list[Refusal] = []
    setting = [plan for plan in plans if not plan.empty]
    for plan in (*(plan for plan in setting if plan.reference), *(plan for plan in setting if not plan.reference)):
        for kind, target, source in (("option", result.options, plan.treatment.options), ("variable", result.env, plan.treatment.env)):
            for name, value in source.items():
                owner = owners.get((kind, name))
                if owner is not None and not owner.reference and target.get(name) != value:
                    clashes.append(
                        Refusal(plan.factor, plan.level, f"{owner.factor}={owner.level} sets the {kind} {name} to something else")
                    )
                    continue
                owners[kind, name] = plan
                if value is None:
                    target.pop(name, None)
                else:
                    target[name] = value
        patches += [patch for patch in plan.treatment.patches if patch not in patches]
    result.patches = tuple(patches)
    result.clashes = tuple(clashes)
    return result
