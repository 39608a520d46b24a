"""Named rules for level texts that a factor file need not list one by one (`value_rule`), each with its reason when it refuses."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from runner.errors import UserError, choices
from runner.planning.bytes import power_of_two_bytes


def positive_integer(text: str, where: str) -> int:
    """`64` -> 64."""
    if not re.fullmatch(r"[1-9][0-9]*", text):
        raise UserError(f"{where}: {text!r} is not a whole number above 0")
    return int(text)


def integer(text: str, where: str) -> int:
    """`-1` -> -1."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise UserError(f"{where}: {text!r} is not a whole number")
    return int(text)


def number(text: str, where: str) -> float:
    """`0.85` -> 0.85."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: {text!r} is not a number") from None


def integer_list(text: str, where: str) -> list[int]:
    """`1,2,4` -> [1, 2, 4], rising."""
    if not re.fullmatch(r"[1-9][0-9]*(\s*,\s*[1-9][0-9]*)*", text):
        raise UserError(f"{where}: {text!r} is not a list of whole numbers; write it like 1,2,4,8")
    numbers = [int(item) for item in text.split(",")]
    if sorted(set(numbers)) != numbers:
        raise UserError(f"{where}: {text!r} must rise, without repeats")
    return numbers


def any_text(text: str, where: str) -> str:
    """Any text that is not empty: the engine has the last word."""
    if not text.strip():
        raise UserError(f"{where}: an empty level")
    return text


VALUE_RULES: Mapping[str, Callable[[str, str], Any]] = MappingProxyType(
    {
        "power_of_two_bytes": power_of_two_bytes,
        "positive_integer": positive_integer,
        "integer": integer,
        "number": number,
        "integer_list": integer_list,
        "any_text": any_text,
    }
)


def value_of(rule: str, text: str, where: str) -> Any:
    """The level's value by the named rule. Raises UserError for an unknown rule or a text that it refuses."""
    if rule not in VALUE_RULES:
        raise UserError(f"{where}: there is no value_rule {rule!r}; choices: {choices(VALUE_RULES)}")
    return VALUE_RULES[rule](text, where)
