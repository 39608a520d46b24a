"""Which architectures FlashInfer agrees to compile a kernel for: the lists its JIT modules hand to the compiler flags."""

import ast
import re
from collections.abc import Iterator

from runner.engines.audit.facts import Facts
from runner.engines.audit.gates import Gate
from runner.engines.audit.index import SourceFile
from runner.engines.audit.packages import Package
from runner.engines.audit.subjects import Subject

LIST = re.compile(r"supported_major_versions|major_versions")


def compile_gates(subject: Subject, package: Package, facts: Facts) -> list[Gate]:
    """One gate a compiled module that belongs to the flag. A module belongs when its function mentions the flag's sources."""
    if subject.jit is None:
        return []
    sources = re.compile(subject.jit)
    return [
        gate
        for file in _files(package)
        if LIST.search(file.text) and sources.search(file.text)
        for node in ast.walk(file.tree or ast.Module([], []))
        if isinstance(node, ast.FunctionDef) and sources.search(" ".join(_strings(node)))
        for gate in _lists(subject, file, node, facts)
    ]


def _lists(subject: Subject, file: SourceFile, function: ast.FunctionDef, facts: Facts) -> Iterator[Gate]:
    for part in ast.walk(function):
        if not isinstance(part, ast.Call):
            continue
        for keyword in part.keywords:
            if keyword.arg and LIST.search(keyword.arg) and isinstance(keyword.value, (ast.List, ast.Tuple)):
                majors = [item.value for item in keyword.value.elts if isinstance(item, ast.Constant)]
                major = facts.major_minor[0]
                yield Gate(
                    flag=subject.name,
                    kind="compiles for",
                    file=file.name,
                    line=keyword.value.lineno,
                    function=function.name,
                    condition=f"{keyword.arg}={majors}",
                    gives="open" if major in majors else "raises",
                    effect="" if major in majors else f"No supported CUDA architectures found for major versions {majors}.",
                    values={f"{major} in {majors}": str(major in majors)},
                )


def _strings(function: ast.FunctionDef) -> list[str]:
    return [part.value for part in ast.walk(function) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _files(package: Package) -> Iterator[SourceFile]:
    folders = [package.folder / "jit"] if (package.folder / "jit").is_dir() else []
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))] or [
        path for path in sorted(package.folder.rglob("*.py")) if "cutlass" not in path.parts
    ]
    for path in paths:
        yield SourceFile(
            f"{package.name}/{path.relative_to(package.folder).as_posix()}", path.read_text(encoding="utf-8", errors="replace")
        )
