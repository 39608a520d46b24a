"""The closed grammar of conditions in factor files. Nothing here is ever evaluated as code.

    condition := clause ("and" clause)*
    clause    := NAME ("==" | "!=" | ">=" | "<=" | ">" | "<") VALUE
               | NAME ("in" | "not in") "[" VALUE ("," VALUE)* "]"

VALUE is a number, a bare word or a quoted text; `true`, `false` and `null` mean themselves. Engine versions are PEP 440
specifier sets (`>=0.5.9,<0.5.14`), so 0.5.15.post1 lies after 0.5.15.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from runner.errors import UserError, instead
from runner.spec.factor import Condition

GRAMMAR = "`name == value`, `name >= 2`, `name in [a, b]`, joined by `and`"
_TOKEN = re.compile(r"""\s*(?:(==|!=|>=|<=|>|<|\[|\]|,)|"([^"]*)"|'([^']*)'|([^\s\[\],=!<>"']+))""")
_OPERATORS = ("==", "!=", ">=", "<=", ">", "<", "in", "not in")


@dataclass(frozen=True)
class Clause:
    """One comparison: the subject's `name`, an operator, and one value (several for `in` and `not in`)."""

    name: str
    operator: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        shown = [_shown(value) for value in self.values]
        return f"{self.name} {self.operator} " + (f"[{', '.join(shown)}]" if self.operator.endswith("in") else shown[0])


def parse(text: str, where: str) -> tuple[Clause, ...]:
    """The clauses of a condition, all of which must hold. `where` names file and key. Raises UserError with the grammar."""
    tokens = _tokens(text, where)
    clauses: list[Clause] = []
    position = 0
    while True:
        clause, position = _clause(tokens, position, text, where)
        clauses.append(clause)
        if position == len(tokens):
            return tuple(clauses)
        if tokens[position] != ("word", "and"):
            raise _refused(text, where, f"`and` expected, not {tokens[position][1]!r}")
        position += 1


def holds(clauses: tuple[Clause, ...], values: Mapping[str, Any], where: str, *, closed: bool = True) -> bool:
    """Do all clauses hold for `values`? A name that is not there raises UserError with the choices when `closed`, else it is null.
    Comparing the order of things that have none (text, null) is False for null and a UserError for text."""
    return all(_holds(clause, values, where, closed) for clause in clauses)


def version_of(text: str, where: str = "engine.version") -> Version:
    """Raises UserError when `text` is no version."""
    try:
        return Version(text)
    except InvalidVersion:
        raise UserError(f"{where}: {text!r} is not a version; write it like 0.5.9 or 0.5.15.post1") from None


def version_in(version: Version, specifiers: str, where: str) -> bool:
    """Is the version in the specifier set? Raises UserError naming `where` when the set is not one."""
    try:
        return SpecifierSet(specifiers).contains(version, prereleases=True)
    except InvalidSpecifier:
        raise UserError(f"{where}: {specifiers!r} is not a set of versions; write it like >=0.5.9,<0.5.14") from None


def subject_of(condition: Condition) -> tuple[str, str]:
    """(subject, text) of a condition: ("node", "gpus >= 2")."""
    for subject in ("node", "engine", "factor", "model", "arm"):
        text = getattr(condition, subject)
        if text is not None:
            return subject, text
    raise AssertionError("a condition has exactly one subject")


def _tokens(text: str, where: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _refused(text, where, f"cannot read {text[position:].strip()!r}")
        sign, double, single, word = match.groups()
        quoted = double if double is not None else single
        tokens.append(("sign", sign) if sign is not None else ("text", quoted) if quoted is not None else ("word", word))
        position = match.end()
    return tokens


def _clause(tokens: list[tuple[str, str]], position: int, text: str, where: str) -> tuple[Clause, int]:
    def take() -> tuple[str, str]:
        nonlocal position
        if position >= len(tokens):
            raise _refused(text, where, "it ends too early")
        position += 1
        return tokens[position - 1]

    kind, name = take()
    if kind != "word" or name in ("and", "in", "not"):
        raise _refused(text, where, f"a name expected, not {name!r}")
    kind, operator = take()
    if (kind, operator) == ("word", "not"):
        operator = f"not {take()[1]}"
    if operator not in _OPERATORS:
        raise _refused(text, where, f"{operator!r} is not an operator ({', '.join(_OPERATORS)})")
    if not operator.endswith("in"):
        return Clause(name, operator, (_value(take(), text, where),)), position
    if take() != ("sign", "["):
        raise _refused(text, where, f"`{operator}` wants a list in square brackets")
    values = [_value(take(), text, where)]
    while (following := take()) == ("sign", ","):
        values.append(_value(take(), text, where))
    if following != ("sign", "]"):
        raise _refused(text, where, f"`,` or `]` expected, not {following[1]!r}")
    return Clause(name, operator, tuple(values)), position


def _value(token: tuple[str, str], text: str, where: str) -> Any:
    kind, content = token
    if kind == "sign":
        raise _refused(text, where, f"a value expected, not {content!r}")
    if kind == "text":
        return content
    if content in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[content]
    number = _number(content)
    return content if number is None else number


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return value
    try:
        return int(value)
    except (TypeError, ValueError):
        pass
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _holds(clause: Clause, values: Mapping[str, Any], where: str, closed: bool) -> bool:
    if closed and clause.name not in values:
        raise UserError(f"{where}: {str(clause)!r}: there is no {clause.name!r}{instead(clause.name, values)}")
    actual = values.get(clause.name)
    match clause.operator:
        case "==" | "in":
            return any(_equal(actual, value) for value in clause.values)
        case "!=" | "not in":
            return not any(_equal(actual, value) for value in clause.values)
    if actual is None:
        return False
    left, right = _number(actual), _number(clause.values[0])
    if left is None or right is None:
        raise UserError(f"{where}: {str(clause)!r} compares the order of {actual!r} and {clause.values[0]!r}, which are not both numbers")
    return {">=": left >= right, "<=": left <= right, ">": left > right, "<": left < right}[clause.operator]


def _equal(actual: Any, wanted: Any) -> bool:
    if type(actual) is type(wanted):
        return bool(actual == wanted)
    if isinstance(actual, bool) or isinstance(wanted, bool) or actual is None or wanted is None:
        return actual is wanted
    left, right = _number(actual), _number(wanted)
    if left is not None and right is not None:
        return left == right
    return str(actual) == str(wanted)


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)


def _refused(text: str, where: str, why: str) -> UserError:
    return UserError(f"{where}: the condition {text!r} is not understood: {why}; the grammar is {GRAMMAR}")
