"""One legal cell under the rules: what it would launch, why it is refused, and which simpler cell it equals.

`canonical` is the cell after everything that cannot matter is taken out: levels that are one and the same on this node, variables
that this version never reads, size limits that let no measured message through.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from runner.config import Settings
from runner.planning.cells import Levels, applying, conditional_text, conditions_of
from runner.planning.conditions import Clause, holds, parse, subject_of, version_in
from runner.planning.messages import Coverage, captured, coverage, decode_batches
from runner.planning.pins import option_value
from runner.planning.treatments import (
    Effective,
    LevelPlan,
    Refusal,
    check_refusal,
    common_treatment,
    effective,
    file_of,
    level_plan,
    selected_phases,
)
from runner.spec.factor import FactorSpec, Marker, Treatment

Reads = Callable[[list[str]], Mapping[str, bool | None]]
SIZE_RULE = "power_of_two_bytes"
EXPECTED_INERT = "expected INERT"
EXPECTED_REFUSAL = "a rule expects a refusal"
# Only the engine's own variables are looked for in its source; NCCL's and others are read by libraries.
OWN_PREFIXES = ("SGLANG_", "SGL_")
NOT_IMPORTABLE = re.compile(r"not importable\.(\w+)")


@dataclass(frozen=True)
class Candidate:
    """A cell and what the rules make of it. `soft`: refusals that this engine version does not confirm."""

    levels: Levels
    canonical: Levels
    effective: Effective
    key: str
    reasons: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    soft: tuple[Refusal, ...] = ()
    limits: Mapping[str, Coverage] = field(default_factory=dict)


@dataclass(frozen=True)
class _Equal:
    """An equivalence that holds here, as far as node, model and version decide; `clauses` on factors or options are still open."""

    subject: str
    clauses: tuple[Clause, ...]
    levels: frozenset[str]
    same_as: str
    reason: str
    where: str


class RuleBook:
    """Everything about one study that does not depend on the cell, worked out once."""

    def __init__(
        self,
        settings: Settings,
        version: Version,
        grid_levels: Mapping[str, set[str]],
        reads: Reads | None,
        absent: Collection[str] = (),
    ) -> None:
        """`absent`: Python packages that the engine's environment is known not to have."""
        self.settings = settings
        self.absent = absent
        self.version = version
        self.factors = settings.factors
        phases = selected_phases(settings)
        self.batches = decode_batches(phases.values())
        self.common: Treatment = common_treatment(settings, version, phases)
        self.facts: dict[str, dict[str, Any]] = {"node": settings.node.model_dump(), "model": settings.model.model_dump()}
        self.plans: dict[tuple[str, str], LevelPlan] = {
            (name, level): level_plan(self.factors[name], name, level, version, self.facts)
            for name, levels in grid_levels.items()
            for level in sorted({*levels, *self._reference_levels(name)})
        }
        self.outside = {name for name, factor in self.factors.items() if factor.known and not self._in(factor.known, name, "known")}
        self.unconfirmed: list[str] = [
            f"{name}: its rules were read from engine versions {self.factors[name].known}; {version} is outside"
            for name in self.factors
            if name in self.outside
        ]
        self.unconfirmed += [text for plan in self.plans.values() for text in plan.unconfirmed]
        self.unread = self._unread(reads)
        self._coverage: dict[tuple[int, tuple[int, ...] | None, int | None], Coverage] = {}
        self._equivalences = {name: self._live_equivalences(name, factor) for name, factor in self.factors.items()}
        self._unread_levels = {item: sentence for item in self.plans if (sentence := self._never_read(*item)) is not None}
        self._applies = conditions_of(self.factors)
        self._effective: dict[tuple[tuple[str, str], ...], Effective] = {}
        self._keys: dict[tuple[tuple[tuple[str, str], ...], tuple[tuple[int, ...], ...]], str] = {}
        self._contradictions: dict[tuple[str, str], tuple[tuple[str, tuple[Clause, ...]], ...]] = {}

    def candidate(self, levels: Levels) -> Candidate:
        """What the rules make of one legal cell."""
        written = effective(self.common, [self.plans[item] for item in levels.items()])
        refusals = self._refusals(levels, written)
        canonical, reasons, limits = self._canonical(levels, written)
        result = self._launched(canonical, written if canonical == levels else None)
        firm = tuple(refusal for refusal in refusals if refusal.factor not in self.outside)
        soft = tuple(refusal for refusal in refusals if refusal.factor in self.outside)
        if not self.settings.protocol.trust_rules:
            firm, soft = written.clashes, tuple(refusal for refusal in refusals if refusal not in written.clashes)
        return Candidate(levels, canonical, result, self._key(result, canonical, limits), tuple(reasons), firm, soft, limits)

    def expectations(self, levels: Mapping[str, str], options: Mapping[str, Any], baseline: Mapping[str, str]) -> tuple[str, ...]:
        """What is known beforehand about an arm: the levels' own remarks, and factors whose effect the options already contradict."""
        texts = []
        for name, level in levels.items():
            plan = self.plans[name, level]
            if plan.expect:
                texts.append(f"{name}={level}: {plan.expect}")
            if baseline.get(name) != level and (proof := self._contradiction(name, level, options)):
                texts.append(f"{name}={level}: {EXPECTED_INERT}: {proof}")
        return tuple(texts)

    def _launched(self, canonical: Levels, written: Effective | None) -> Effective:
        """What the canonical cell's launch gets, without variables that this version never reads."""
        key = tuple(canonical.items())
        if key not in self._effective:
            made = written or effective(self.common, [self.plans[item] for item in key])
            env = {name: value for name, value in made.env.items() if name not in self.unread}
            self._effective[key] = Effective(made.options, env, made.patches, made.clashes)
        return self._effective[key]

    def _reference_levels(self, name: str) -> set[str]:
        """Levels that canonical cells can fall back to: the factor's reference and what its equivalences point at."""
        factor = self.factors[name]
        return {factor.reference_level, *(rule.same_as for rule in factor.equivalent if rule.same_as is not None)}

    def _in(self, specifiers: str, name: str, key: str) -> bool:
        return version_in(self.version, specifiers, f"{file_of(name)}, {key}")

    def _unread(self, reads: Reads | None) -> dict[str, str]:
        """Variables that this version never reads, with the sentence that says so."""
        owners: dict[str, str] = {}
        for plan in self.plans.values():
            for variable in plan.treatment.env:
                owners.setdefault(variable, plan.factor)
        asked = dict(reads(sorted(name for name in owners if name.startswith(OWN_PREFIXES)))) if reads and owners else {}
        unread = {}
        for variable, name in owners.items():
            answer = asked.get(variable)
            ranges = self.factors[name].reads.get(variable)
            if answer is None and ranges is not None:
                answer = self._in(ranges, name, f"reads.{variable}")
                if name in self.outside:
                    self.unconfirmed.append(f"{name}: whether {self.version} reads {variable} (read by {ranges})")
            if answer is False:
                unread[variable] = f"{self.version.base_version} never reads {variable}"
        return unread

    def _refusals(self, levels: Levels, written: Effective) -> tuple[Refusal, ...]:
        found: list[Refusal] = []
        for item in levels.items():
            plan = self.plans[item]
            found += plan.refusals
            found += [r for check in plan.checks if (r := self._broken(check, levels, written))]
        return (*found, *written.clashes)

    def _broken(self, check: Any, levels: Levels, written: Effective) -> Refusal | None:
        refusal = check_refusal(check, levels, written.options)
        if refusal is not None and not check.condition.confirmed:
            text = f"{refusal} (not confirmed)"
            if text not in self.unconfirmed:
                self.unconfirmed.append(text)
            return None
        return refusal

    def _live_equivalences(self, name: str, factor: FactorSpec) -> tuple[_Equal, ...]:
        """Equivalences that can hold for this version, node and model; those on other factors or options stay open."""
        live = []
        for rule in factor.equivalent:
            where = f"{file_of(name)}, equivalent.when"
            if rule.when.when is not None and not version_in(self.version, rule.when.when, where):
                continue
            subject, text = subject_of(rule.when)
            clauses: tuple[Clause, ...] = ()
            if subject == "engine":
                if not version_in(self.version, text, where):
                    continue
            else:
                clauses = parse(text, where)
                if subject in ("node", "model") and not holds(clauses, self.facts[subject], where):
                    continue
            same_as = rule.same_as if rule.same_as is not None else factor.reference_level
            open_clauses = clauses if subject in ("factor", "arm") else ()
            live.append(_Equal(subject, open_clauses, frozenset(rule.levels), same_as, rule.reason, where))
        return tuple(live)

    def _equal_here(self, rule: _Equal, levels: Levels, written: Effective) -> bool:
        if not rule.clauses:
            return True
        values: Mapping[str, Any] = (
            levels if rule.subject == "factor" else {clause.name: option_value(written.options, clause.name) for clause in rule.clauses}
        )
        return holds(rule.clauses, values, rule.where, closed=False)

    def _canonical(self, levels: Levels, written: Effective) -> tuple[Levels, list[str], dict[str, Coverage]]:
        canonical, reasons = dict(levels), []
        for name, level in levels.items():
            for rule in self._equivalences[name]:
                named = level != rule.same_as and (level in rule.levels or not rule.levels)
                if named and self._equal_here(rule, levels, written):
                    canonical[name] = rule.same_as
                    reasons.append(rule.reason)
                    break
        for item in list(canonical.items()):
            sentence = self._unread_levels.get(item)
            if sentence is None:
                continue
            name = item[0]
            reference = self.factors[name].reference_level
            if (name, reference) in self._unread_levels:
                del canonical[name]
            else:
                canonical[name] = reference
            reasons.append(sentence)
        self._drop_the_groundless(canonical, reasons)
        limits = self._limits(canonical, reasons, written.options)
        return canonical, reasons, limits

    def _drop_the_groundless(self, canonical: Levels, reasons: list[str]) -> None:
        """Takes out factors that existed only under a level which an equivalence or an unread variable has replaced."""
        kept = applying(canonical, self._applies)
        for name in [name for name in canonical if name not in kept]:
            del canonical[name]
            reasons.append(conditional_text([rule for rule in self._applies if rule.factor == name]))

    def _never_read(self, name: str, level: str) -> str | None:
        """Why the level sets nothing that this version reads; None when it sets something, or nothing at all."""
        treatment = self.plans[name, level].treatment
        if treatment.options or treatment.patches or not treatment.env:
            return None
        sentences = [self.unread.get(variable) for variable in treatment.env]
        return "; ".join(filter(None, sentences)) if all(sentences) else None

    def _limits(self, canonical: Levels, reasons: list[str], options: Mapping[str, Any]) -> dict[str, Coverage]:
        """Coverage of the size limits in the cell; a limit that lets nothing through switches its flag off."""
        limits: dict[str, Coverage] = {}
        for name, level in list(canonical.items()):
            factor = self.factors[name]
            if factor.value_rule != SIZE_RULE:
                continue
            found = self._covered(self.plans[name, level].value, captured(options), option_value(options, "max-running-requests"))
            if found.covered:
                limits[name] = found
                continue
            del canonical[name]
            reasons.append(
                f"{level} lets no measured message through (the smallest has {found.smallest:,} B)"
                if found.smallest
                else "no measured batch runs inside a captured graph"
            )
            for condition in factor.requires:
                if condition.factor is not None:
                    for clause in parse(condition.factor, file_of(name)):
                        if clause.name in canonical:
                            canonical[clause.name] = self.factors[clause.name].reference_level
        return limits

    def _covered(self, limit: int, sizes: tuple[int, ...] | None, running: int | None) -> Coverage:
        """What a limit lets through of the batches that run: no batch is wider than the running requests."""
        key = (limit, sizes, running)
        if key not in self._coverage:
            batches = {min(batch, running or batch) for batch in self.batches}
            self._coverage[key] = coverage(limit, batches, sizes, self.settings.model)
        return self._coverage[key]

    def _key(self, result: Effective, canonical: Levels, limits: Mapping[str, Coverage]) -> str:
        """Equal keys launch the same thing as far as this workload can tell."""
        known = (tuple(canonical.items()), tuple(found.covered for found in limits.values()))
        if known in self._keys:
            return self._keys[known]
        options, env = dict(result.options), dict(result.env)
        for name, found in limits.items():
            factor = self.factors[name]
            if factor.value_env is not None and factor.value_env in env:
                env[factor.value_env] = f"lets through {found.covered}"
            elif factor.value_option is not None and factor.value_option in options:
                options[factor.value_option] = f"lets through {found.covered}"
        self._keys[known] = json.dumps([options, env, result.patches], sort_keys=True, default=str)
        return self._keys[known]

    def _contradiction(self, name: str, level: str, options: Mapping[str, Any]) -> str:
        """The first negative marker that holds before anything starts, or '': of /server_info, which the planned options already
        satisfy, or of the probe, where the environment lacks a package."""
        if (name, level) not in self._contradictions:
            self._contradictions[name, level] = self._negative_markers(name, level)
        for text, clauses in self._contradictions[name, level]:
            values = {clause.name: option_value(options, clause.name) for clause in clauses}
            if holds(clauses, values, file_of(name), closed=False):
                return text
        return ""

    def _negative_markers(self, name: str, level: str) -> tuple[tuple[str, tuple[Clause, ...]], ...]:
        found: list[tuple[str, tuple[Clause, ...]]] = []
        for rule in self.factors[name].evidence:
            if (rule.levels is not None and level not in rule.levels) or not self._in(rule.engine, name, "evidence.engine"):
                continue
            for marker in (rule.contradicted,) if isinstance(rule.contradicted, Marker) else rule.contradicted:
                missing = NOT_IMPORTABLE.fullmatch(marker.probe or "")
                if missing and missing[1] in self.absent:
                    found.append(
                        (f"the engine's environment has no Python package {missing[1]}{f' ({rule.note})' if rule.note else ''}", ())
                    )
                if marker.server_info is not None:
                    clauses = parse(marker.server_info, f"{file_of(name)}, evidence.contradicted.server_info")
                    if any("." in clause.name for clause in clauses):
                        continue  # a value that the engine makes while it starts: no option of ours says it beforehand
                    found.append((f"{marker.server_info}{f' ({rule.note})' if rule.note else ''}", clauses))
        return tuple(found)
