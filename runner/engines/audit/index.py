"""The engine's source as text and syntax trees: read once, parsed only where something of interest is mentioned."""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from runner.engines.audit.packages import Package
from runner.engines.audit.variables import NOT_SERVED

# Folders that hold many models or kernels and no gate of a flag, unless the model that is served lies there.
MODELS = "models"
SKIPPED = NOT_SERVED | {"cutlass", "cute_dsl", "xpu", "npu", "hpu", "musa", "mlx", "mps", "ascend"}
# A name with more homes than this is a common local word, not one definition.
MANY = 6
OTHER_DEVICES = re.compile(r"(?:npu|xpu|hpu|musa|mlx|ascend|cpu|hip)_")


class SourceFile:
    """One Python file. `name`: package/path as shown to people."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._assigned: dict[int, Mapping[str, list[ast.expr]]] = {}

    @cached_property
    def lower(self) -> str:
        return self.text.lower()

    @cached_property
    def tree(self) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # odd escapes in the engine's strings are not ours to report
                return ast.parse(self.text)
        except (SyntaxError, ValueError):
            return None

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the file, walked once."""
        return () if self.tree is None else tuple(ast.walk(self.tree))

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def module_names(self) -> Mapping[str, ast.AST]:
        """Names bound at module level (also inside try and if), or by functions that declare them global. A name that is set to
        different things is left out, but an expression outranks the placeholders (None, False) that stand in for it."""
        found: dict[str, list[ast.AST]] = {}
        for node in self._module_statements():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(node.name, []).append(node)
            for name, bound in _bindings(node):
                found.setdefault(name, []).append(bound)
        if "global " in self.text:
            for function in (node for node in self.nodes if isinstance(node, ast.FunctionDef)):
                shared = _globals(function)
                for part in ast.walk(function) if shared else ():
                    for name, bound in _bindings(part):
                        if name in shared:
                            found.setdefault(name, []).append(bound)
        chosen = {name: _one_of(values) for name, values in found.items()}
        return {name: value for name, value in chosen.items() if value is not None}

    @cached_property
    def imports(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Imported name -> (module, name there); module with its leading dots. `*` has the modules that give everything."""
        found: dict[str, list[tuple[str, str]]] = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, []).append(("." * node.level + (node.module or ""), alias.name))
        return found

    def assigned(self, function: ast.AST) -> Mapping[str, list[ast.expr]]:
        """Values that each local name and each `self.NAME` is set to inside a function or class."""
        key = id(function)
        if key not in self._assigned:
            found: dict[str, list[ast.expr]] = {}
            shared = _globals(function) if isinstance(function, ast.FunctionDef) else frozenset()
            for node in ast.walk(function):
                for name, value in _bindings(node):
                    if name not in shared:
                        found.setdefault(name, []).append(value)
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                            found.setdefault(f"self.{target.attr}", []).append(node.value)
            self._assigned[key] = found
        return self._assigned[key]

    def _module_statements(self) -> Iterator[ast.stmt]:
        waiting: list[ast.stmt] = list(self.tree.body) if self.tree else []
        for node in waiting:
            yield node
            if isinstance(node, (ast.If, ast.Try)):
                waiting += [*node.body, *node.orelse]
            if isinstance(node, ast.Try):
                waiting += [statement for handler in node.handlers for statement in handler.body]


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _globals(function: ast.FunctionDef) -> frozenset[str]:
    return frozenset(name for node in function.body if isinstance(node, ast.Global) for name in node.names)


def _one_of(values: list[ast.AST]) -> ast.AST | None:
    telling = [value for value in values if not isinstance(value, ast.Constant)] or values
    return telling[0] if len(telling) == 1 or len({ast.dump(value) for value in telling}) == 1 else None


class SourceIndex:
    """All files of a package that a server may run."""

    def __init__(self, package: Package, architecture: str | None = None) -> None:
        self.package = package
        self.files = [
            SourceFile(f"{package.name}/{path.relative_to(package.folder).as_posix()}", path.read_text(encoding="utf-8", errors="replace"))
            for path in _python_files(package.folder)
        ]
        wanted = self._model_files(architecture)
        self.files = [file for file in self.files if f"/{MODELS}/" not in file.name or file.name in wanted]
        self._definitions: dict[str, tuple[SourceFile, ast.AST] | None] = {}
        self._probes: dict[str, str | None] = {}

    def mentioning(self, words: Sequence[str]) -> list[SourceFile]:
        """Files that contain one of the (lower case) words."""
        return [file for file in self.files if any(word in file.lower for word in words)]

    def definition(self, name: str, seen_from: SourceFile | None = None) -> tuple[SourceFile, ast.AST] | None:
        """Where a module-level name is defined: in the file itself, where that file imports it from, else anywhere in the package.
        None when nowhere, or in several different ways."""
        if seen_from is not None:
            hit = self._imported(name, seen_from, 6)
            if hit is not None:
                return hit
        if name not in self._definitions:
            self._definitions[name] = self._find(name)
        return self._definitions[name]

    def _imported(self, name: str, file: SourceFile, steps: int) -> tuple[SourceFile, ast.AST] | None:
        if name in file.module_names:
            return file, file.module_names[name]
        for module, alias in file.imports.get(name, ()) if steps else ():
            home = self._module(module, file)
            hit = self._imported(alias, home, steps - 1) if home is not None else None
            if hit is not None:
                return hit
        for module, _ in file.imports.get("*", ()) if steps else ():
            home = self._module(module, file)
            if home is not None and name in home.text:
                hit = self._imported(name, home, steps - 1)
                if hit is not None:
                    return hit
        return None

    def _module(self, module: str, seen_from: SourceFile) -> SourceFile | None:
        """The file of a module name; leading dots are relative to the file that imports it."""
        dots = len(module) - len(module.lstrip("."))
        place = module.strip(".").replace(".", "/")
        if dots:
            base = seen_from.name.rsplit("/", dots)[0]
            place = f"{base}/{place}" if place else base
        return self._by_name.get(f"{place}.py") or self._by_name.get(f"{place}/__init__.py")

    @cached_property
    def _by_name(self) -> Mapping[str, SourceFile]:
        return {file.name: file for file in self.files}

    def default_of(self, attribute: str) -> ast.expr | None:
        """Default of an engine argument: the value of an annotated class field of that name, in a file about arguments."""
        return self._defaults.get(attribute)

    @cached_property
    def _defaults(self) -> Mapping[str, ast.expr]:
        return {
            item.target.id: item.value
            for file in self.files
            if "server_args" in file.name or "/arg_groups/fields" in file.name or "\nclass ServerArgs" in file.text
            for node in (file.tree.body if file.tree else ())
            if isinstance(node, ast.ClassDef)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
        }

    def probe_named(self, attribute: str) -> str | None:
        """The function behind a platform fact (`platform.is_sm100`): from a table of names to names in the source."""
        if attribute not in self._probes:
            pattern = re.compile(rf"[\"']{re.escape(attribute)}[\"']\s*:\s*[\"'](\w+)[\"']")
            hits = (pattern.search(file.text) for file in self.files if f'"{attribute}"' in file.text or f"'{attribute}'" in file.text)
            self._probes[attribute] = next((hit.group(1) for hit in hits if hit), None)
        return self._probes[attribute]

    def _find(self, name: str) -> tuple[SourceFile, ast.AST] | None:
        pattern = re.compile(re.escape(name) + r"\s*[=:(]")
        homes = [file for file in self.files if name in file.text and _binds(file.text, pattern)]
        homes = [file for file in homes if "/utils" in file.name] or homes
        if len(homes) > MANY:
            return None
        found = [(file, file.module_names[name]) for file in homes if name in file.module_names]
        return found[0] if len({ast.dump(node) for _, node in found}) == 1 else None

    def _model_files(self, architecture: str | None) -> set[str]:
        """Files that define the served model's class and what it inherits from."""
        wanted: set[str] = set()
        names = [architecture] if architecture else []
        while names:
            name = names.pop()
            pattern = re.compile(rf"^class {re.escape(name)}\b\s*(?:\(([^)]*)\))?", re.M)
            for file in self.files:
                hit = pattern.search(file.text) if f"/{MODELS}/" in file.name else None
                if hit and file.name not in wanted:
                    wanted.add(file.name)
                    names += [base.strip().split(".")[-1] for base in (hit.group(1) or "").split(",") if base.strip().isidentifier()]
        return wanted


def _binds(text: str, pattern: re.Pattern[str]) -> bool:
    """The name is defined or assigned near the left margin somewhere in the text."""
    for hit in pattern.finditer(text):
        before = text[text.rfind("\n", 0, hit.start()) + 1 : hit.start()]
        if before.strip() in {"", "def", "class"} or before.rstrip().endswith("="):
            return True
    return False


def _python_files(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir()):
        if entry.is_dir():
            if entry.name not in SKIPPED:
                yield from _python_files(entry)
        elif entry.suffix == ".py" and not OTHER_DEVICES.match(entry.name):
            yield entry
