"""Finds the conditions that decide a flag and says what each gives on this node."""

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from runner.engines.audit.evaluate import UNKNOWN, Evaluator, Scope, scope_of
from runner.engines.audit.facts import Facts
from runner.engines.audit.index import SourceFile, SourceIndex
from runner.engines.audit.subjects import Subject
from runner.spec.base import Strict

Gives = Literal["open", "closed", "raises", "depends", "not reached"]
LOGS = frozenset({"warning", "warn", "error", "info", "warning_once", "info_once", "log_info_on_rank0", "print_warning_once"})
ARGUMENTS = re.compile(r"server_args|arg_groups|validation")
SWITCH = re.compile(r"disabled|unavailable|available|enabled|supported|reason", re.I)


class Gate(Strict):
    """One condition that decides a flag. `gives` is the answer on this node; `values` are the parts of the condition as far as
    they are known; `depends_on` is what is left of it otherwise."""

    flag: str
    kind: Literal["refuses", "turns off", "decides", "sets", "needs module", "needs multicast", "compiles for"]
    file: str
    line: int
    function: str
    condition: str
    gives: Gives
    effect: str = Field(default="", description="what happens where the condition holds, in the source's own words")
    values: dict[str, str] = Field(default_factory=dict)
    depends_on: str = ""
    own: bool = Field(default=True, description="the flag's own gate; False: a condition of something else that mentions the flag")


def gates_of(subject: Subject, index: SourceIndex, facts: Facts) -> list[Gate]:
    """Every gate of one flag in one package, in file order."""
    evaluator = Evaluator(
        index,
        facts.model_copy(
            update={
                "arguments": {**subject.on, **facts.arguments},
                "environment": {**subject.environment, **facts.environment},
            }
        ),
        subject.calls,
    )
    found: list[Gate] = []
    for file in index.mentioning(subject.words):
        if file.tree is not None:
            found += _Finder(subject, evaluator, file).gates()
    return found


class _Finder:
    """Looks through one file for one subject."""

    def __init__(self, subject: Subject, evaluator: Evaluator, file: SourceFile) -> None:
        self.subject = subject
        self.evaluator = evaluator
        self.file = file
        self.topic = re.compile(subject.topic, re.I)
        self.anchors = frozenset(subject.anchors)
        pattern = subject.pattern
        self.lines = [number for number, line in enumerate(file.text.splitlines(), 1) if pattern.search(line)]
        self.ranges = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in (file.nodes if self.lines else ())
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and self.topic.search(node.name)
        ]

    def _near(self, node: ast.AST) -> bool:
        """The node, or the name of a function or class around it, has something to do with the flag."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        place = bisect_left(self.lines, first)
        return (place < len(self.lines) and self.lines[place] <= last) or any(start <= first <= end for start, end in self.ranges)

    def gates(self) -> Iterator[Gate]:
        for node in self.file.nodes if self.lines else ():
            gate = None
            if not isinstance(node, (ast.If, ast.Return, ast.Assign, ast.Assert, ast.Try, ast.Call)):
                continue
            if not self._near(node) and not isinstance(node, ast.Call):
                continue
            if isinstance(node, ast.If):
                gate = self._if(node)
            elif isinstance(node, ast.Return) and isinstance(node.value, (ast.BoolOp, ast.Compare, ast.UnaryOp)):
                gate = self._decision(node, node.value)
            elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.BoolOp, ast.Compare)):
                gate = self._decision(node, node.value, ", ".join(ast.unparse(target) for target in node.targets))
            elif isinstance(node, ast.Assert):
                gate = self._assert(node)
            elif isinstance(node, ast.Try):
                gate = self._import(node)
            elif isinstance(node, ast.Call) and self.subject.multicast:
                gate = self._multicast(node)
            if gate is not None:
                yield gate

    # --- what counts as a gate

    def _if(self, node: ast.If) -> Gate | None:
        effect, kind = self._effect(node.body)
        if not kind:
            return None
        scope = scope_of(self.file, node)
        direct = self._mentions_anchor(node.test)
        near = self._on_topic(scope) or any(self.topic.search(text) for text in _texts(node.body))
        if not direct and not near:
            return None
        value = self.evaluator.value(node.test, scope)
        if not direct and kind == "turns off" and value is UNKNOWN and not effect:
            return None  # a run-time check of one call (a dtype, a shape) that nobody is told about
        if kind == "refuses" and not direct and not any(self.topic.search(text) for text in _texts(node.body)) and not self._own_file():
            return None
        gives: Gives = "depends" if value is UNKNOWN else "open"
        missing = self.evaluator.missing_key(node.test, scope) if value is UNKNOWN else None
        if missing is not None:
            return self._gate(node, node.test, "refuses", "raises", scope, missing)
        if value is not UNKNOWN and value:
            unset = kind == "sets" and effect.rstrip("}").endswith(("None", "False"))
            gives = "raises" if kind == "refuses" else "closed" if kind == "turns off" or unset else "open"
        elif value is not UNKNOWN and kind == "sets":
            gives = "not reached"
        return self._where_used(self._gate(node, node.test, kind, gives, scope, effect), scope)

    def _where_used(self, gate: Gate, scope: Scope) -> Gate:
        """A refusal inside a class that is not about the flag (a graph runner, a recorder) refuses only where that class is used."""
        owner = scope.owner
        if gate.gives != "raises" or owner is None or self.topic.search(owner.name) or self._own_file() or ARGUMENTS.search(self.file.name):
            return gate
        return gate.model_copy(update={"gives": "depends", "depends_on": f"whether {owner.name} is used"})

    def _decision(self, node: ast.stmt, test: ast.expr, target: str = "") -> Gate | None:
        scope = scope_of(self.file, node)
        direct = self._mentions_anchor(test)
        if target and not (direct and isinstance(test, ast.BoolOp)):
            return None
        if not target and not direct and not self._on_topic(scope):
            return None
        if not direct and not isinstance(test, ast.BoolOp):
            return None
        value = self.evaluator.value(test, scope)
        gives: Gives = "depends" if value is UNKNOWN else "open" if value else "closed"
        return self._gate(node, test, "decides", gives, scope, f"sets {target}" if target else f"returned by {self._function(scope)}")

    def _assert(self, node: ast.Assert) -> Gate | None:
        message = " ".join(_texts([ast.Expr(node.msg)] if node.msg is not None else []))
        if not self._mentions_anchor(node.test) and not self.topic.search(message):
            return None
        scope = scope_of(self.file, node)
        value = self.evaluator.value(node.test, scope)
        gives: Gives = "depends" if value is UNKNOWN else "open" if value else "raises"
        return self._where_used(self._gate(node, node.test, "refuses", gives, scope, message), scope)

    def _import(self, node: ast.Try) -> Gate | None:
        """An import that switches the feature off when it fails."""
        handlers = [
            item for item in node.handlers if item.type is None or "Import" in ast.unparse(item.type) or "Module" in ast.unparse(item.type)
        ]
        modules = [name for statement in node.body for name in _imported(statement) if self.topic.search(name)]
        if not handlers or not modules:
            return None
        scope = scope_of(self.file, node)
        effect = self._effect([statement for handler in handlers for statement in handler.body])[0]
        return self._gate(
            node, ast.Constant(f"import {', '.join(modules)}"), "needs module", "depends", scope, effect or "goes on without it"
        )

    def _multicast(self, node: ast.Call) -> Gate | None:
        name = ast.unparse(node.func)
        if not re.search(r"multicast", name.split(".")[-1], re.I) or not name.split(".")[-1].startswith("cu"):
            return None
        scope = scope_of(self.file, node)
        link = self.evaluator.facts.link
        gives: Gives = "depends" if link is None else "open" if link == "nvlink" else "closed"
        if gives == "closed" and self._failure_is_tolerated(node, scope):
            gives = "open"
        condition = f"{name.split('.')[-1]}(...) succeeds"
        return self._gate(
            node, ast.Constant(condition), "needs multicast", gives, scope, "asks the driver for multicast, which needs NVSwitch"
        )

    def _failure_is_tolerated(self, node: ast.Call, scope: Scope) -> bool:
        """The error of the call is tested, and no failure of it raises."""
        statement: ast.AST | None = node
        while statement is not None and not isinstance(statement, ast.stmt):
            statement = self.file.parents.get(statement)
        if not isinstance(statement, ast.Assign) or scope.function is None:
            return False
        errors = {
            part.id for target in statement.targets for part in ast.walk(target) if isinstance(part, ast.Name) and part.id.startswith("err")
        }
        tests = [
            item
            for item in ast.walk(scope.function)
            if isinstance(item, ast.If)
            and item.lineno > statement.lineno
            and errors & {part.id for part in ast.walk(item.test) if isinstance(part, ast.Name)}
        ]
        return bool(tests) and not any(isinstance(part, ast.Raise) for item in tests[:1] for part in ast.walk(item))

    # --- what a branch does

    def _effect(self, body: Sequence[ast.stmt]) -> tuple[str, str]:
        """(words, kind) of a branch; kind '' when it decides nothing."""
        words = " ".join(_said(body))
        for statement in body:
            if isinstance(statement, ast.Raise):
                return " ".join(_texts([statement])) or ast.unparse(statement), "refuses"
            if isinstance(statement, ast.If) and any(isinstance(part, ast.Return) for part in ast.walk(statement)):
                return words, ""  # what the branch does is decided inside it
            if isinstance(statement, ast.Return) and _is_refusal(statement.value):
                return words, "turns off"
            if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Dict):
                keys = [key.value for key in statement.value.keys if isinstance(key, ast.Constant)]
                if self.anchors & set(keys):
                    return ast.unparse(statement), "sets"
            if isinstance(statement, ast.Assign):
                target = ast.unparse(statement.targets[0])
                if target.split(".")[-1] in self.anchors:
                    return ast.unparse(statement), "sets"
                if SWITCH.search(target) and isinstance(statement.value, (ast.Constant, ast.JoinedStr)):
                    reason = (
                        " ".join(_texts([statement]))
                        if not isinstance(statement.value, ast.Constant) or isinstance(statement.value.value, str)
                        else ""
                    )
                    if reason or _turns_off(target, statement.value):
                        return reason or words or ast.unparse(statement), "turns off"
        return words, ""

    def _mentions_anchor(self, node: ast.AST) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and part.attr in self.anchors:
                return True
            if isinstance(part, ast.Name) and part.id in self.anchors:
                return True
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in self.anchors:
                return True
        return False

    def _on_topic(self, scope: Scope) -> bool:
        names = [scope.function.name if scope.function else "", scope.owner.name if scope.owner else ""]
        return any(name and self.topic.search(name) for name in names)

    def _own_file(self) -> bool:
        return bool(self.topic.search(self.file.name.rsplit("/", 1)[-1]))

    def _function(self, scope: Scope) -> str:
        return ".".join(part.name for part in (scope.owner, scope.function) if part is not None) or "module level"

    def _gate(self, node: ast.AST, test: ast.expr, kind: Any, gives: Gives, scope: Scope, effect: str) -> Gate:
        plain = isinstance(test, ast.Constant)
        atoms = {} if plain else self.evaluator.atoms(test, scope)
        around = self._around(node, scope)
        depends_on = "" if plain else self.evaluator.residual(test, scope)
        if around is None:
            gives = "not reached"
        elif around and gives in {"raises", "closed"}:
            gives, depends_on = "depends", around
        return Gate(
            flag=self.subject.name,
            kind=kind,
            file=self.file.name,
            line=getattr(node, "lineno", 0),
            function=self._function(scope),
            condition=str(test.value) if isinstance(test, ast.Constant) else ast.unparse(test),
            gives=gives,
            effect=re.sub(r"\s+", " ", effect).strip()[:300],
            values={name: repr(value) for name, value in atoms.items() if value is not UNKNOWN},
            depends_on=depends_on,
            own=self._own(test, kind, scope, effect),
        )

    def _own(self, test: ast.expr, kind: str, scope: Scope, effect: str) -> bool:
        if self._on_topic(scope) or kind in {"needs module", "needs multicast", "compiles for"} or self._own_file():
            return True
        if kind == "decides" and not effect.startswith("returned"):
            return bool(self.topic.search(effect))
        if kind == "decides":
            parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
            return any(self._mentions_anchor(part) and not isinstance(part, ast.UnaryOp) for part in parts)
        return bool(self.topic.search(effect)) or kind == "sets"

    def _around(self, node: ast.AST, scope: Scope) -> str | None:
        """None when the conditions around the node, or an earlier one that leaves the function, are known to keep the run away from
        it; else those around it that are not known, as text ('' when all are known to hold)."""
        unknown: list[str] = []
        child, above = node, self.file.parents.get(node)
        while above is not None and child is not scope.function:
            if isinstance(above, ast.If) and child is not above.test:
                value = self.evaluator.value(above.test, scope)
                inside = any(child is part for part in above.body)
                if value is UNKNOWN:
                    text = self.evaluator.residual(above.test, scope)
                    unknown.append(text if inside else f"not ({text})")
                elif inside is not bool(value):
                    return None
            for name in ("body", "orelse"):
                block = getattr(above, name, None)
                if isinstance(block, list) and any(child is item for item in block):
                    for earlier in block[: next(i for i, item in enumerate(block) if item is child)]:
                        if isinstance(earlier, ast.If) and _leaves(earlier.body) and self._holds(earlier.test, scope):
                            return None
            child, above = above, self.file.parents.get(above)
        return " and ".join(reversed(unknown))

    def _holds(self, test: ast.expr, scope: Scope) -> bool:
        value = self.evaluator.value(test, scope)
        return value is not UNKNOWN and bool(value)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise))


def _is_refusal(value: ast.expr | None) -> bool:
    if value is None:
        return True
    return (isinstance(value, ast.Constant) and value.value in (None, False)) or (isinstance(value, ast.Dict) and not value.keys)


def _turns_off(target: str, value: ast.expr) -> bool:
    if not isinstance(value, ast.Constant) or not isinstance(value.value, bool):
        return False
    negative = re.search(r"disabled|unavailable", target, re.I) is not None
    return value.value is negative


def _texts(body: Sequence[ast.stmt]) -> list[str]:
    """String constants in statements, f-strings in parts, with names left out."""
    return [
        part.value for statement in body for part in ast.walk(statement) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def _said(body: Sequence[ast.stmt]) -> list[str]:
    """What a branch tells the person: strings of its log calls."""
    words = []
    for statement in body:
        for part in ast.walk(statement):
            if isinstance(part, ast.Call) and ast.unparse(part.func).split(".")[-1] in LOGS:
                words += [item for argument in part.args for item in _texts([ast.Expr(argument)])]
    return words


def _imported(statement: ast.stmt) -> list[str]:
    names = []
    for part in ast.walk(statement):
        if isinstance(part, ast.Import):
            names += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module:
            names += [f"{part.module}.{alias.name}" for alias in part.names]
        elif isinstance(part, ast.Call) and ast.unparse(part.func).endswith("import_module") and part.args:
            names += [part.args[0].value] if isinstance(part.args[0], ast.Constant) and isinstance(part.args[0].value, str) else []
    return names
