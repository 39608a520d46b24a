"""Does this version's source read an environment variable? A treatment that sets one nobody reads changes nothing."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner.engines.audit.packages import packages_of

# Folders of the package that no server runs: a mention there is no reading.
NOT_SERVED = frozenset({"test", "tests", "multimodal_gen", "lang", "benchmark", "eval", "__pycache__"})
TEXT = frozenset({".py", ".cu", ".cuh", ".cc", ".cpp", ".h", ".hpp", ".rs", ".sh"})
OWN_PREFIXES = ("SGLANG_", "SGL_", "FLASHINFER_", "MSCCLPP_")


def reads_of(source: str | Path, names: Sequence[str], *, python_path: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Places (`package/file:line`) that read each variable, in the packages of `source` (a folder, or an interpreter with
    `python_path` first on its path)."""
    places: dict[str, list[str]] = {name: [] for name in names}
    if not names:
        return {}
    wanted = {name: re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(name.encode()) + rb"(?![A-Za-z0-9_])") for name in names}
    for package in packages_of(source, python_path=python_path).values():
        for path in _files(package.folder):
            try:
                content = path.read_bytes()
            except OSError:
                continue
            mentioned = [name for name, pattern in wanted.items() if name.encode() in content and pattern.search(content)]
            if not mentioned:
                continue
            shown = f"{package.name}/{path.relative_to(package.folder)}"
            lines = _reading_lines(content, mentioned) if path.suffix == ".py" else _text_lines(content, wanted, mentioned)
            for name, numbers in lines.items():
                places[name] += [f"{shown}:{number}" for number in numbers]
    return {name: tuple(found) for name, found in places.items()}


def env_reads(python_or_source: str | Path, names: Sequence[str], *, python_path: Sequence[str] = ()) -> dict[str, bool | None]:
    """True: this version's source reads the variable. False: it is the engine's to read (by its prefix) and no source reads it.
    None: nothing can be said (libraries in binary form read it, say NCCL_*, or there is no source)."""
    packages = packages_of(python_or_source, python_path=python_path)
    if "sglang" not in packages:
        return dict.fromkeys(names)
    return {
        name: True if places else (False if name.startswith(OWN_PREFIXES) and _source_known(name, packages) else None)
        for name, places in reads_of(python_or_source, names, python_path=python_path).items()
    }


def _source_known(name: str, packages: Mapping[str, object]) -> bool:
    if name.startswith("FLASHINFER_"):
        return "flashinfer" in packages
    return not name.startswith("MSCCLPP_")


def _files(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir()):
        if entry.is_dir():
            if entry.name not in NOT_SERVED and entry.name != "cutlass":
                yield from _files(entry)
        elif entry.suffix in TEXT:
            yield entry


def _text_lines(content: bytes, wanted: Mapping[str, "re.Pattern[bytes]"], names: Sequence[str]) -> dict[str, list[int]]:
    return {
        name: [number for number, line in enumerate(content.splitlines(), 1) if wanted[name].search(line) and b"getenv" in line]
        for name in names
    }


def _reading_lines(content: bytes, names: Sequence[str]) -> dict[str, list[int]]:
    """Lines of a Python file that read one of the names: as a string (not a bare docstring, not `environ[NAME] = ...`) or as an
    attribute (`envs.NAME.get()`); defining, setting or clearing it is no reading."""
    lines: dict[str, list[int]] = {name: [] for name in names}
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return {name: [0] for name in names}
    ignored: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored.add(id(node.value))
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            ignored |= {id(part) for part in ast.walk(node.slice)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"set", "clear", "override", "pop", "unsetenv", "putenv"} and isinstance(node.func.value, ast.Attribute):
                ignored.add(id(node.func.value))
            if node.func.attr in {"setdefault", "pop", "putenv", "unsetenv"} and node.args:
                ignored.add(id(node.args[0]))
            if node.func.attr in {"debug", "info", "warning", "error", "exception", "warn"}:
                ignored |= {id(part) for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Dict):
            # {"NAME": "1"} handed to a child process sets it; a tuple or list of names is read by something.
            ignored |= {id(key) for key in node.keys if key is not None}
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in lines:
            lines[node.value].append(node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in lines:
            lines[node.attr].append(node.lineno)
    return {sys.intern(name): sorted(set(numbers)) for name, numbers in lines.items()}
