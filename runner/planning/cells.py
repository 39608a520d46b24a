"""From the experiment's grid to its legal cells. A conditional factor that does not apply to a cell is absent from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from runner.config import Settings
from runner.errors import UserError, choices, instead
from runner.planning.conditions import Clause, holds, parse
from runner.planning.treatments import file_of
from runner.planning.values import value_of
from runner.spec.factor import FactorSpec

Levels = dict[str, str]


@dataclass(frozen=True)
class Grid:
    """The legal cells, each once, in the grid's order; `baseline` is one of them. `raw`: combinations as written."""

    raw: int
    cells: tuple[Levels, ...]
    baseline: Levels
    factors: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Applies:
    """Where a factor exists: all clauses on other factors' levels."""

    factor: str
    clauses: tuple[Clause, ...]
    where: str


def expand(settings: Settings) -> Grid:
    """Raises UserError for a level or factor that does not exist, and for an exclusion that removes the baseline."""
    factors = settings.factors
    base = _baseline_levels(settings)
    _check_levels(factors, {name: set(levels) for name, levels in settings.grid.items()}, "grid")
    _check_levels(factors, {name: {level} for name, level in base.items()}, "baseline")
    for key, rows in (("exclude", settings.exclude), ("include", settings.include)):
        for row in rows:
            _check_levels(factors, {name: {level} for name, level in row.items()}, key)
    applies = conditions_of(factors)
    names = (*settings.grid, *(name for name in base if name not in settings.grid))
    axes = [settings.grid.get(name) or (base[name],) for name in names]
    raw = prod(len(axis) for axis in axes) + len(settings.include)
    seen: dict[tuple[tuple[str, str], ...], Levels] = {}
    excluded = [0] * len(settings.exclude)
    absent: dict[str, bool] = dict.fromkeys(names, True)
    merged = 0
    rows_written = [dict(zip(names, combination, strict=True)) for combination in product(*axes)]
    rows_written += [{**base, **row} for row in settings.include]
    for written in rows_written:
        cell = applying(written, applies)
        key_of_cell = tuple(cell.items())
        if key_of_cell in seen:
            merged += len(cell) < len(written)
            continue
        hit = next((index for index, rule in enumerate(settings.exclude) if all(cell.get(n) == lv for n, lv in rule.items())), None)
        if hit is not None:
            excluded[hit] += 1
            continue
        seen[key_of_cell] = cell
        for name in cell:
            absent[name] = False
    baseline = applying({name: base[name] for name in names}, applies)
    notes = []
    for rule, count in zip(settings.exclude, excluded, strict=True):
        if rule and all(baseline.get(name) == level for name, level in rule.items()):
            raise UserError(f"exclude: {_text(rule)} removes the baseline ({_text(baseline)}), which every arm is compared with")
        notes.append(f"{count} combinations excluded by the experiment: {_text(rule)}")
    if merged:
        notes.append(f"{merged} combinations differ only in a factor that does not apply to them: {conditional_text(applies)}")
    for name in settings.grid:
        if absent[name]:
            needs = " and ".join(str(clause) for rule in applies if rule.factor == name for clause in rule.clauses)
            raise UserError(f"grid.{name} applies nowhere: it exists only where {needs}; add that factor to grid: or baseline:")
    if tuple(baseline.items()) not in seen:
        seen[tuple(baseline.items())] = baseline
        notes.append(f"the baseline is not in the grid and is added to its cells: {_text(baseline)}")
    return Grid(raw, tuple(seen.values()), baseline, tuple(names), tuple(notes))


def _baseline_levels(settings: Settings) -> Levels:
    """The baseline's level of every factor: as written, else the factor's reference level."""
    levels = {name: settings.factors[name].reference_level for name in settings.grid}
    return {**levels, **settings.baseline}


def _check_levels(factors: Mapping[str, FactorSpec], named: Mapping[str, set[str]], key: str) -> None:
    for name, levels in named.items():
        if name not in factors:
            hint = "; name it under baseline: too, so that its file is read" if key == "include" else ""
            raise UserError(f"{key}: {name!r} is not a factor of this experiment{instead(name, factors)}{hint}")
        factor = factors[name]
        for level in sorted(levels):
            if factor.value_rule is not None:
                value_of(factor.value_rule, level, f"{key}.{name}")
            elif level not in factor.levels:
                known = choices(factor.levels)
                raise UserError(f"{key}.{name}: factor {name} has no level {level!r}; choices: {known} (from {file_of(name)})")


def conditions_of(factors: Mapping[str, FactorSpec]) -> tuple[Applies, ...]:
    rules = []
    for name, factor in factors.items():
        for condition in factor.requires:
            if condition.factor is not None:
                where = f"{file_of(name)}, requires: factor"
                rules.append(Applies(name, parse(condition.factor, where), where))
    return tuple(rules)


def applying(written: Mapping[str, str], rules: Sequence[Applies]) -> Levels:
    """The cell without the factors that do not apply; what depends on an absent factor is absent too."""
    cell = dict(written)
    changed = True
    while changed:
        changed = False
        for rule in rules:
            if rule.factor in cell and not holds(rule.clauses, cell, rule.where, closed=False):
                del cell[rule.factor]
                changed = True
    return cell


def conditional_text(rules: Sequence[Applies]) -> str:
    return "; ".join(f"{rule.factor} exists only where {' and '.join(map(str, rule.clauses))}" for rule in rules)


def _text(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={level}" for name, level in levels.items()) or "nothing"
