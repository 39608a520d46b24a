"""Size limits as SGLang's legacy mscclpp reads them: a mandatory unit, and only powers of two are safe."""

import re

from runner.errors import UserError

UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
_SIZE = re.compile(r"([0-9]+)\s?([A-Za-z]*)")


def power_of_two_bytes(text: str, where: str) -> int:
    """`1MB` -> 1048576. Raises UserError with the reason.

    The unit is mandatory: every scheduler parses the text at import and dies of `Unsupported unit`, even with the flag off.
    The tuned sizes are the powers of two up to the largest one under the limit; a message between that one and a limit that
    is no power of two indexes past their end and kills the server with IndexError.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UserError(f"{where}: {text!r} is not a size; write it like 256KB, 1MB or 4MB (units: {', '.join(UNITS)})")
    count, unit = int(match[1]), match[2]
    if unit not in UNITS:
        given = f"{unit!r} is none of them" if unit else "there is none"
        meant = _meant(count, unit)
        raise UserError(
            f"{where}: {text!r}: the unit is mandatory, one of {', '.join(UNITS)}, and {given}: the engine stops with "
            f"'Unsupported unit', even where the flag is off{f'; did you mean {meant}?' if meant else ''}"
        )
    size = count * UNITS[unit]
    if size < 1024 or size & (size - 1):
        below = 1 << max(size.bit_length() - 1, 10)
        raise UserError(
            f"{where}: {text!r}: only powers of two from 1KB on work: sizes are tuned in powers of two, and a message between the last "
            f"of them and the limit ends the server with IndexError; the neighbours are {text_of(below)} and {text_of(below * 2)}"
        )
    return size


def text_of(size: int) -> str:
    """1048576 -> `1MB`: the largest unit that divides it."""
    for unit, factor in reversed(UNITS.items()):
        if size % factor == 0 and size >= factor:
            return f"{size // factor}{unit}"
    return f"{size}B"


def _meant(count: int, unit: str) -> str:
    """What a person who wrote this size probably wants, or ''."""
    if not unit:
        return text_of(count)
    key = unit.upper().replace("I", "")
    key = key if key.endswith("B") else f"{key}B"
    return f"{count}{key}" if key in UNITS else ""
