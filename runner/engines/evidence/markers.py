"""The closed grammar of markers. Nothing here is ever evaluated as code.

    log, debug_log, trace :  a text that must occur (as it stands, not a pattern); the line that echoes the arguments does not count
    probe, server_info    :  ["not"] PATH  |  PATH OP VALUE  |  PATH ("in" | "not in") "[" VALUE ("," VALUE)* "]"
    metrics               :  NAME ["{" LABEL="VALUE" ("," ...)* "}"] OP NUMBER     (the sum over the series that match)

PATH is names and list positions joined by dots (`internal_states.0.disable_shared_experts_fusion`); `*` is any position. OP is one
of == != >= <= > <. VALUE is a number, true, false, null, a bare word or a quoted text. A path that is not there makes the marker not
match, whatever it asks: what was not read proves nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runner.engines.evidence.sources import Sources, find_line
from runner.errors import UserError
from runner.spec.factor import Marker

Source = Literal["log", "debug_log", "trace", "probe", "metrics", "server_info"]
KINDS: tuple[Source, ...] = ("log", "debug_log", "trace", "probe", "metrics", "server_info")
_COMPARE = re.compile(r"^(?P<path>\S+?)\s*(?P<op>==|!=|>=|<=|>|<)\s*(?P<value>.+)$")
_MEMBER = re.compile(r"^(?P<path>\S+)\s+(?P<op>not in|in)\s+\[(?P<values>[^\]]*)\]$")
_TRUTH = re.compile(r"^(?P<not>not\s+)?(?P<path>[\w.\-*:]+)$")
_METRIC = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s*(?P<op>==|!=|>=|<=|>|<)\s*(?P<value>[-+0-9.eE]+)$")
_LABEL = re.compile(r'\s*(\w+)\s*=\s*"([^"]*)"\s*(?:,|$)')
_MISSING = object()
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: bool(left == right),
    "!=": lambda left, right: bool(left != right),
    ">=": lambda left, right: bool(left >= right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    "<": lambda left, right: bool(left < right),
}


@dataclass(frozen=True)
class Found:
    """A marker that matched: the line, field, metric or probe that says so."""

    proof: str
    source: Source
    line: int | None = None


def kind_of(marker: Marker) -> tuple[Source, str]:
    """(source, text) of a marker. Raises UserError when it has none or several."""
    given = [(kind, text) for kind in KINDS if (text := getattr(marker, kind)) is not None]
    if len(given) != 1:
        raise UserError(f"a marker has exactly one of {', '.join(KINDS)}, not {[kind for kind, _ in given] or 'none'}")
    return given[0]


def readable(marker: Marker, sources: Sources) -> bool:
    """Was the source of this marker read at all?"""
    kind, _ = kind_of(marker)
    return {
        "log": bool(sources.log),
        "debug_log": bool(sources.log) and sources.shows_debug,
        "trace": sources.trace is not None,
        "probe": sources.probe is not None,
        "metrics": sources.metrics is not None,
        "server_info": sources.resolved is not None,
    }[kind]


def find(marker: Marker, sources: Sources) -> Found | None:
    """Where the marker matches, or None (also when its source was not read). Raises UserError for a marker outside the grammar."""
    kind, text = kind_of(marker)
    if kind in {"log", "debug_log"}:
        hit = find_line(sources.log, text)
        return Found(hit[1][:1000], kind, hit[0]) if hit else None
    if kind == "trace":
        kernel = next((name for name in sources.trace or () if text in name), None)
        return Found(kernel, kind) if kernel is not None else None
    if kind == "metrics":
        return _find_metric(text, sources.metrics)
    body = sources.probe if kind == "probe" else sources.resolved
    parse(marker)
    return _find_field(text, body, kind) if body is not None else None


def parse(marker: Marker) -> None:
    """Checks a marker against the grammar. Raises UserError."""
    kind, text = kind_of(marker)
    if kind in {"log", "debug_log", "trace"}:
        if not text.strip():
            raise UserError(f"{kind}: an empty text is found everywhere; write what the engine prints")
        return
    if kind == "metrics":
        if not _METRIC.match(text.strip()):
            raise UserError(f'metrics: {text!r} is not in the grammar; write `sglang:name > 0` or `sglang:name{{mode="decode"}} > 0`')
        return
    if not (_MEMBER.match(text.strip()) or _TRUTH.match(text.strip()) or _COMPARE.match(text.strip())):
        raise UserError(f"{kind}: {text!r} is not in the grammar; write `path == value`, `path in [a, b]`, `path` or `not path`")


def _find_field(text: str, body: Mapping[str, Any], kind: Source) -> Found | None:
    text = text.strip()
    member = _MEMBER.match(text)
    truth = _TRUTH.match(text) if member is None else None
    compare = _COMPARE.match(text) if member is None and truth is None else None
    match = member or truth or compare
    assert match is not None, text
    for path, value in _values(body, match["path"]):
        if truth is not None:
            held = not value if truth["not"] else bool(value)
        elif member is not None:
            wanted = [_value(word) for word in member["values"].split(",")]
            held = (_plain(value) in wanted) == (member["op"] == "in")
        else:
            assert compare is not None
            held = _compare(_plain(value), compare["op"], _value(compare["value"]))
        if held:
            return Found(f"{kind}: {path} = {_shown(value)}{_why(body, path)}", kind)
    return None


def _why(body: Mapping[str, Any], path: str) -> str:
    """The error that the probe met when it imported a module."""
    errors = body.get("import_errors")
    module = path.removeprefix("importable.")
    return f" ({errors[module]})" if isinstance(errors, Mapping) and module in errors else ""


def _values(body: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All (path, value) that `path` names. A key that itself contains dots (`flashinfer.comm`) is found too."""
    if not path:
        yield "", body
        return
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        head, rest = ".".join(parts[:length]), ".".join(parts[length:])
        if head == "*" and isinstance(body, Sequence) and not isinstance(body, str):
            children: list[tuple[str, Any]] = [(str(index), item) for index, item in enumerate(body)]
        else:
            child = _child(body, head)
            children = [] if child is _MISSING else [(head, child)]
        for name, child in children:
            for below, value in _values(child, rest):
                yield (f"{name}.{below}" if below else name), value
        if children:
            return


def _child(body: Any, name: str) -> Any:
    if isinstance(body, Mapping):
        return body.get(name, _MISSING)
    if isinstance(body, Sequence) and not isinstance(body, str) and name.isdigit() and int(name) < len(body):
        return body[int(name)]
    return _MISSING


def _plain(value: Any) -> Any:
    """A capability [9, 0] is 90, so that it can be compared with the node's; everything else stays."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value[0] * 10 + value[1]
    return value


def _value(word: str) -> Any:
    word = word.strip()
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "\"'":
        return word[1:-1]
    named = {"true": True, "false": False, "null": None}
    if word.lower() in named:
        return named[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _compare(left: Any, operator: str, right: Any) -> bool:
    # true == 1 in Python; a switch is not a number here.
    if operator in {"==", "!="} and isinstance(left, bool) != isinstance(right, bool):
        return operator == "!="
    try:
        return _ORDER[operator](left, right)
    except TypeError:
        return False


def _shown(value: Any) -> str:
    import json

    return json.dumps(value, default=str)[:200]


def _find_metric(text: str, metrics: str | None) -> Found | None:
    match = _METRIC.match(text.strip())
    if match is None:
        raise UserError(f"metrics: {text!r} is not in the grammar; write `sglang:name > 0`")
    if metrics is None:
        return None
    wanted = dict(_LABEL.findall(match["labels"] or ""))
    total, seen = 0.0, False
    for line in metrics.splitlines():
        if not line.startswith(match["name"]) or line[len(match["name"]) : len(match["name"]) + 1] not in {"{", " "}:
            continue
        series, _, number = line.rpartition(" ")
        labels = dict(_LABEL.findall(series.partition("{")[2].rstrip("}")))
        if any(labels.get(name) != value for name, value in wanted.items()):
            continue
        try:
            total += float(number)
        except ValueError:
            continue
        seen = True
    if seen and _compare(total, match["op"], float(match["value"])):
        return Found(f"metrics: {match['name']}{{{match['labels'] or ''}}} = {total:g}".replace("{}", ""), "metrics")
    return None
