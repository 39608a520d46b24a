"""Runs inside the engine's own interpreter, by path: which files would this environment import, here and in its children?

Standard library only; imports none of the packages it is asked about (no GPU is needed): it walks the import system's own
finders, editable installs included, as an import would. One JSON object on stdin, one on stdout.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import types
from typing import Any


def drop_own_folder() -> None:
    """The folder of a script is put first on the path; nothing of it may stand in for a module of the engine."""
    here = str(pathlib.Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]


def spec_of(name: str) -> Any:
    """The spec an import of `name` would use, found without executing any package on the way."""
    # importlib.util.find_spec would import the parents; the import system's own search takes the parent's path instead. A
    # folder without __init__.py asks for its parent among the loaded modules: empty stand-ins take their place meanwhile.
    find_spec = importlib._bootstrap._find_spec  # type: ignore[attr-defined]
    path: list[str] | None = None
    spec = None
    parts = name.split(".")
    stand_ins = []
    try:
        for index in range(len(parts)):
            full = ".".join(parts[: index + 1])
            spec = find_spec(full, path)
            if spec is None:
                return None
            if spec.submodule_search_locations is not None:
                path = list(spec.submodule_search_locations)
                if full not in sys.modules:
                    sys.modules[full] = module = types.ModuleType(full)
                    module.__path__ = path
                    stand_ins.append(full)
        return spec
    finally:
        for full in stand_ins:
            del sys.modules[full]


def sha_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def modules_seen(names: list[str]) -> dict[str, Any]:
    """Module name to where it would come from and the hash of what lies there."""
    seen: dict[str, Any] = {}
    for name in names:
        try:
            spec = spec_of(name)
            origin = None if spec is None else spec.origin
            seen[name] = {
                "origin": origin,
                "sha256": sha_of(origin) if origin and pathlib.Path(origin).is_file() else None,
                "finder": None if spec is None else type(spec.loader).__name__,
            }
        except Exception as error:  # noqa: BLE001 - a broken finder is a finding
            seen[name] = {"origin": None, "sha256": None, "finder": None, "error": f"{type(error).__name__}: {error}"}
    return seen


def path_sum(node: ast.expr, known: dict[str, Any]) -> Any:
    """The value of an expression over paths: names in `known`, constants, `Path(...)`, `/`, `.parent`, `.parents[n]`, `.resolve()`,
    `.absolute()`, `.expanduser()`, `os.getenv(...)`. Nothing of the file is run. Raises ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int)):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return pathlib.Path(path_sum(node.left, known)) / path_sum(node.right, known)
    if isinstance(node, ast.Attribute) and node.attr in ("parent", "parents"):
        return getattr(pathlib.Path(path_sum(node.value, known)), node.attr)
    if isinstance(node, ast.Subscript):
        found = path_sum(node.value, known)
        return found[path_sum(node.slice, known)]
    if isinstance(node, ast.Call) and not node.keywords:
        called, given = ast.unparse(node.func), [path_sum(each, known) for each in node.args]
        if called in ("Path", "pathlib.Path", "str"):
            return str(given[0]) if called == "str" else pathlib.Path(*given)
        if called in ("os.getenv", "os.environ.get"):
            return os.environ.get(*given)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("resolve", "absolute", "expanduser") and not given:
            return getattr(pathlib.Path(path_sum(node.func.value, known)), node.func.attr)()
    raise ValueError(f"no path: {ast.unparse(node)}")


def jit_folders() -> dict[str, str]:
    """Folders that FlashInfer compiles from: the path constants of its `jit/env.py`, computed from where that file lies."""
    spec = spec_of("flashinfer.jit.env")
    if spec is None or not spec.origin:
        return {}
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    known: dict[str, Any] = {"__file__": spec.origin}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if not isinstance(target, ast.Name) or value is None:
            continue
        try:
            known[target.id] = path_sum(value, known)
        except (ValueError, TypeError, IndexError):  # constants that need more than paths are not wanted here
            continue
    return {
        name: str(value)
        for name, value in known.items()
        if isinstance(value, pathlib.PurePath) and (name == "_package_root" or str(known.get("_package_root", "\0")) in str(value))
    }


def imported(names: list[str]) -> dict[str, Any]:
    """Really imports the modules: file it came from, or why it could not be imported here."""
    seen: dict[str, Any] = {}
    for name in names:
        try:
            module = importlib.import_module(name)
            seen[name] = {"origin": module.__file__, "sha256": sha_of(str(module.__file__))}
        except BaseException as error:  # noqa: BLE001 - no GPU, no kernels: said, not fatal
            seen[name] = {"origin": None, "sha256": None, "error": f"{type(error).__name__}: {error}"[:300]}
    return seen


def into_queue(queue: Any, order: dict[str, Any]) -> None:
    queue.put(look(order))


def look(order: dict[str, Any]) -> dict[str, Any]:
    answer = {"modules": modules_seen(order["modules"]), "jit": jit_folders() if order["jit"] else {}}
    if order.get("import"):
        answer["imported"] = imported(order["modules"])
    return answer


def main() -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.argv[1:] == ["--child"]:
        drop_own_folder()
        json.dump(look(json.load(sys.stdin)), out)
        return 0
    drop_own_folder()
    order = json.load(sys.stdin)
    answer: dict[str, Any] = {"parent": look(order), "aot": importlib.util.find_spec("flashinfer_jit_cache") is not None}
    # The engine starts its schedulers with "spawn"; helper programs are started as plain children.
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=into_queue, args=(queue, order))
    child.start()
    answer["spawned"] = queue.get(timeout=order["timeout_s"])
    child.join()
    plain = subprocess.run(
        [sys.executable, __file__, "--child"],
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        text=True,
        timeout=order["timeout_s"],
        check=True,
    )
    answer["started"] = json.loads(plain.stdout)
    answer["meta_path"] = [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]
    json.dump(answer, out)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
