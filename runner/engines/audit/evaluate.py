"""Partial evaluation of the engine's conditions: what is known decides, what is unknown stays in the condition.

Predicates are followed to their definitions (`_is_sm100_supported` to `is_sm100_supported` to a capability list), so that a
renamed or new predicate is understood without a table of names. Nothing of the engine is executed.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.engines.audit.facts import Facts
from runner.engines.audit.index import SourceFile, SourceIndex

DEPTH = 14


class Unknown:
    """The value of what cannot be known before the engine runs."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: its file, the function and class around it, and values bound by a call."""

    file: SourceFile
    function: ast.FunctionDef | None = None
    owner: ast.ClassDef | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)


class Evaluator:
    """Evaluates expressions of one package under `facts`."""

    def __init__(self, index: SourceIndex, facts: Facts, calls: Mapping[str, Any] | None = None) -> None:
        self.index = index
        self.facts = facts
        self._names = facts.names()
        self._primitives = facts.primitives()
        self._fallbacks = {**facts.fallbacks(), **(calls or {})}
        self._by_name: dict[str, Any] = {}

    def value(self, node: ast.AST | None, scope: Scope, depth: int = 0) -> Any:
        """The value of an expression, or UNKNOWN."""
        if depth > DEPTH or node is None:
            return UNKNOWN
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            return UNKNOWN if method is None else method(node, scope, depth + 1)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError):
            return UNKNOWN

    def atoms(self, node: ast.AST, scope: Scope) -> dict[str, Any]:
        """The parts of a condition, each with its value: `{"_is_sm90_supported": False, "batch_size > 0": UNKNOWN}`."""
        if isinstance(node, ast.BoolOp):
            return {name: value for part in node.values for name, value in self.atoms(part, scope).items()}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.atoms(node.operand, scope)
        return {ast.unparse(node): self.value(node, scope)}

    def residual(self, node: ast.AST, scope: Scope) -> str:
        """What the condition still depends on, as text; '' when its value is known."""
        if self.value(node, scope) is not UNKNOWN:
            return ""
        if isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            return word.join(filter(None, (self.residual(part, scope) for part in node.values)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"not ({self.residual(node.operand, scope)})"
        return ast.unparse(node)

    def missing_key(self, node: ast.AST, scope: Scope) -> str | None:
        """A known table that is asked for a known key it does not have: the run ends in a KeyError there."""
        for part in ast.walk(node):
            if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load):
                table, key = self.value(part.value, scope), self.value(part.slice, scope)
                if isinstance(table, dict) and key is not UNKNOWN and key not in table:
                    return f"KeyError: {key!r} ({ast.unparse(part.value)} has {', '.join(map(repr, table))})"
        return None

    # One method a kind of expression, found by its name.

    def _constant(self, node: ast.Constant, scope: Scope, depth: int) -> Any:
        return node.value

    def _tuple(self, node: ast.Tuple, scope: Scope, depth: int) -> Any:
        return self._sequence(node.elts, scope, depth, tuple)

    def _list(self, node: ast.List, scope: Scope, depth: int) -> Any:
        return self._sequence(node.elts, scope, depth, list)

    def _set(self, node: ast.Set, scope: Scope, depth: int) -> Any:
        return self._sequence(node.elts, scope, depth, list)

    def _sequence(self, parts: list[ast.expr], scope: Scope, depth: int, make: Callable[[list[Any]], Any]) -> Any:
        values = [self.value(part, scope, depth) for part in parts]
        return UNKNOWN if any(value is UNKNOWN for value in values) else make(values)

    def _dict(self, node: ast.Dict, scope: Scope, depth: int) -> Any:
        keys = [self.value(key, scope, depth) for key in node.keys]
        if any(key is UNKNOWN for key in keys):
            return UNKNOWN
        return dict(zip(keys, (self.value(item, scope, depth) for item in node.values), strict=True))

    def _boolop(self, node: ast.BoolOp, scope: Scope, depth: int) -> Any:
        stops = isinstance(node.op, ast.Or)
        values = [self.value(part, scope, depth) for part in node.values]
        for value in values:
            if value is not UNKNOWN and bool(value) is stops:
                return value
        return UNKNOWN if any(value is UNKNOWN for value in values) else values[-1]

    def _unaryop(self, node: ast.UnaryOp, scope: Scope, depth: int) -> Any:
        value = self.value(node.operand, scope, depth)
        if value is UNKNOWN:
            return UNKNOWN
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else UNKNOWN

    def _binop(self, node: ast.BinOp, scope: Scope, depth: int) -> Any:
        left, right = self.value(node.left, scope, depth), self.value(node.right, scope, depth)
        operations: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
            ast.Add: operator.add,
            ast.Sub: operator.sub,
            ast.Mult: operator.mul,
            ast.FloorDiv: operator.floordiv,
            ast.Mod: operator.mod,
        }
        if left is UNKNOWN or right is UNKNOWN or type(node.op) not in operations or isinstance(left, str):
            return UNKNOWN
        return operations[type(node.op)](left, right)

    def _ifexp(self, node: ast.IfExp, scope: Scope, depth: int) -> Any:
        test = self.value(node.test, scope, depth)
        return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse, scope, depth)

    def _compare(self, node: ast.Compare, scope: Scope, depth: int) -> Any:
        if "torch.version.cuda" in ast.unparse(node) and all(isinstance(op, (ast.Gt, ast.GtE)) for op in node.ops):
            return True  # "CUDA is new enough": an engine that runs on this node has a toolkit that knows it
        left = self.value(node.left, scope, depth)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, scope, depth)
            if left is UNKNOWN or right is UNKNOWN:
                return UNKNOWN
            if not COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def _subscript(self, node: ast.Subscript, scope: Scope, depth: int) -> Any:
        value, key = self.value(node.value, scope, depth), self.value(node.slice, scope, depth)
        return UNKNOWN if value is UNKNOWN or key is UNKNOWN else value[key]

    def _name(self, node: ast.Name, scope: Scope, depth: int) -> Any:
        name = node.id
        if name in scope.bound:
            return scope.bound[name]
        if name in self._names:
            return self._names[name]
        local = _only_assignment(scope, name)
        if local is not None:
            return self.value(local, scope, depth)
        if scope.function is not None and name in _parameters(scope.function):
            return UNKNOWN
        return self._global(name, scope, depth)

    def _global(self, name: str, scope: Scope, depth: int) -> Any:
        hit = self.index.definition(name, scope.file)
        if hit is None:
            return UNKNOWN
        home, definition = hit
        if isinstance(definition, (ast.FunctionDef, ast.ClassDef)):
            return UNKNOWN
        key = f"{home.name}:{name}"
        if key not in self._by_name:
            self._by_name[key] = UNKNOWN  # a name that leads back to itself is unknown
            self._by_name[key] = self.value(definition, Scope(home), depth)
        return self._by_name[key]

    def _attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Any:
        dotted = ast.unparse(node)
        if dotted in self._primitives:
            return self._primitives[dotted]
        if node.attr in self.facts.arguments:
            return self.facts.arguments[node.attr]
        if node.attr in self._names and (node.attr != "world_size" or ast.unparse(node.value) == "self"):
            return self._names[node.attr]
        owner = scope.owner
        if isinstance(node.value, ast.Name) and node.value.id not in {"self", "cls"}:
            hit = scope.file.module_names.get(node.value.id)
            owner = hit if isinstance(hit, ast.ClassDef) else None
        if owner is not None and isinstance(node.value, ast.Name):
            assigned = _attribute_of(scope.file, owner, node.attr)
            if assigned is not None:
                function = scope.function if scope.owner is owner else None
                return self.value(assigned, Scope(scope.file, _function_holding(owner, assigned) or function, owner), depth)
        if isinstance(node.value, ast.Call):
            probe = self.index.probe_named(node.attr)
            if probe is not None:
                return self._named_call(probe, [], {}, scope, depth)
        default = self.index.default_of(node.attr)
        return UNKNOWN if default is None else self.value(_field_default(default), Scope(scope.file), depth)

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> Any:
        dotted = ast.unparse(node.func)
        if dotted in self._primitives:
            return self._primitives[dotted]
        variable = _environment_variable(node)
        if variable is not None:
            if variable in self.facts.environment:
                return self.facts.environment[variable].lower() not in {"0", "false", ""}
            return self._variable_default(variable, depth)
        if isinstance(node.func, ast.Name):
            return self._plain_call(node, node.func.id, scope, depth)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "get" and node.args:
                table = self.value(node.func.value, scope, depth)
                key = self.value(node.args[0], scope, depth)
                if isinstance(table, dict) and key is not UNKNOWN:
                    return table.get(key)
            if isinstance(node.func.value, ast.Name) and node.func.value.id in {"self", "cls"} and scope.owner is not None:
                method = next(
                    (item for item in scope.owner.body if isinstance(item, ast.FunctionDef) and item.name == node.func.attr), None
                )
                if method is not None and not any(isinstance(part, ast.Name) and part.id == "property" for part in method.decorator_list):
                    return self._run(method, Scope(scope.file, method, scope.owner), depth)
            return self._named_call(node.func.attr, node.args, {}, scope, depth) if node.func.attr in self._fallbacks else UNKNOWN
        return UNKNOWN

    def _plain_call(self, node: ast.Call, name: str, scope: Scope, depth: int) -> Any:
        if name in {"getattr", "hasattr"} and len(node.args) >= 2:
            attribute = self.value(node.args[1], scope, depth)
            if name == "hasattr":
                return False if isinstance(node.args[0], ast.Name) and node.args[0].id == "torch" else UNKNOWN
            value = self._attribute(ast.Attribute(node.args[0], attribute, ast.Load()), scope, depth)
            if value is UNKNOWN and len(node.args) == 3 and attribute in self.facts.arguments:
                return self.value(node.args[2], scope, depth)
            return value
        if name in {"bool", "tuple", "list", "len", "frozenset", "set"} and len(node.args) == 1:
            value = self.value(node.args[0], scope, depth)
            makers: Mapping[str, Callable[[Any], Any]] = {"bool": bool, "len": len, "tuple": tuple}
            return UNKNOWN if value is UNKNOWN else makers.get(name, list)(value)
        named = {keyword.arg: self.value(keyword.value, scope, depth) for keyword in node.keywords if keyword.arg}
        return self._named_call(name, node.args, named, scope, depth)

    def _named_call(self, name: str, args: list[ast.expr], named: Mapping[str, Any], scope: Scope, depth: int) -> Any:
        """A call of a function of the package: its body is evaluated, else what is known of it by name."""
        hit = self.index.definition(name, scope.file)
        result: Any = UNKNOWN
        if hit is not None:
            home, definition = hit
            if isinstance(definition, ast.FunctionDef):
                bound = dict(zip(_parameters(definition), (self.value(part, scope, depth) for part in args), strict=False)) | dict(named)
                result = self._run(definition, Scope(home, definition, None, bound), depth)
            else:
                result = self._partial(definition, home, depth)
        return self._fallbacks.get(name, UNKNOWN) if result is UNKNOWN else result

    def _partial(self, definition: ast.AST, home: SourceFile, depth: int) -> Any:
        """`NAME = lru_cache(...)(partial(function, keyword=value))`, called without arguments."""
        for part in ast.walk(definition):
            if isinstance(part, ast.Call) and ast.unparse(part.func).split(".")[-1] == "partial" and part.args:
                target = part.args[0]
                if isinstance(target, ast.Name):
                    named = {item.arg: self.value(item.value, Scope(home), depth) for item in part.keywords if item.arg}
                    return self._named_call(target.id, part.args[1:], named, Scope(home), depth)
        if isinstance(definition, ast.Call) and len(definition.args) == 1 and isinstance(definition.args[0], ast.Name):
            return self._named_call(definition.args[0].id, [], {}, Scope(home), depth)
        return UNKNOWN

    def _run(self, function: ast.FunctionDef, scope: Scope, depth: int) -> Any:
        """The value a function returns, when its body is conditions and returns."""
        done, value = self._block(function.body, scope, depth)
        return value if done else None

    def _block(self, body: list[ast.stmt], scope: Scope, depth: int) -> tuple[bool, Any]:
        for statement in body:
            if isinstance(statement, ast.Return):
                return True, None if statement.value is None else self.value(statement.value, scope, depth)
            if isinstance(statement, ast.If):
                test = self.value(statement.test, scope, depth)
                if test is UNKNOWN:
                    returns = any(isinstance(part, (ast.Return, ast.Raise)) for part in ast.walk(statement))
                    if returns:
                        return True, UNKNOWN
                    continue
                done, value = self._block(statement.body if test else statement.orelse, scope, depth)
                if done:
                    return True, value
            elif isinstance(statement, (ast.For, ast.While, ast.With, ast.Try, ast.Raise)) and any(
                isinstance(part, (ast.Return, ast.Raise)) for part in ast.walk(statement)
            ):
                return True, UNKNOWN
        return False, None

    def _variable_default(self, variable: str, depth: int) -> Any:
        """`envs.NAME.get()` of a variable that is not set: the default in the registry."""
        default = self._registry_default(variable)
        return UNKNOWN if default is None else self.value(default, Scope(SourceFile("", "")), depth)

    def _registry_default(self, variable: str) -> ast.expr | None:
        for file in self.index.files:
            if file.name.endswith("environ.py") and variable in file.text:
                for node in ast.walk(file.tree or ast.Module([], [])):
                    if (
                        isinstance(node, ast.Assign)
                        and isinstance(node.targets[0], ast.Name)
                        and node.targets[0].id == variable
                        and isinstance(node.value, ast.Call)
                    ):
                        return node.value.args[0] if node.value.args else None
        return None


def scope_of(file: SourceFile, node: ast.AST) -> Scope:
    """The function and class around a node."""
    function: ast.FunctionDef | None = None
    owner: ast.ClassDef | None = None
    above = file.parents.get(node)
    while above is not None:
        if isinstance(above, ast.FunctionDef) and function is None:
            function = above
        if isinstance(above, ast.ClassDef) and owner is None:
            owner = above
        above = file.parents.get(above)
    return Scope(file, function, owner)


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _only_assignment(scope: Scope, name: str) -> ast.expr | None:
    """The value of a local name that is assigned exactly once; with several assignments nothing is known."""
    if scope.function is None or name in _parameters(scope.function):
        return None
    found = scope.file.assigned(scope.function).get(name, [])
    return found[0] if len(found) == 1 else None


def _attribute_of(file: SourceFile, owner: ast.ClassDef, name: str) -> ast.expr | None:
    """A class constant, or the one value that `self.NAME` is set to."""
    # A field's default stands for the argument; what some branch sets it to does not.
    fields = [
        item.value
        for item in owner.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == name and item.value is not None
    ]
    if fields:
        return _field_default(fields[0])
    constants = [
        item.value
        for item in owner.body
        if isinstance(item, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in item.targets)
    ]
    found = constants or file.assigned(owner).get(f"self.{name}", [])
    return found[0] if len(found) == 1 else None


def _function_holding(owner: ast.ClassDef, value: ast.expr) -> ast.FunctionDef | None:
    return next((item for item in owner.body if isinstance(item, ast.FunctionDef) and any(part is value for part in ast.walk(item))), None)


def _field_default(node: ast.expr) -> ast.expr:
    """`field(default=X)` gives X."""
    if isinstance(node, ast.Call):
        return next((keyword.value for keyword in node.keywords if keyword.arg == "default"), node)
    return node


def _environment_variable(node: ast.Call) -> str | None:
    """NAME of `envs.NAME.get()`."""
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr == "get" and not node.args and isinstance(function.value, ast.Attribute):
        name = function.value.attr
        return name if name.isupper() else None
    return None
