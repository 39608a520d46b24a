"""Proves, before a launch and without a GPU, that the overlay's files are the ones the engine would import."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from runner.engines.overlay.build import Overlay, PatchedFile
from runner.errors import UserError
from runner.spec.base import Strict

SCRIPT = Path(__file__).with_name("verify_script.py")
PROCESSES = {"parent": "the engine's process", "spawned": "a spawned child", "started": "a started child"}


class OverlayProof(Strict):
    """`ok` only when every changed file was the one found in the parent, in a spawned child and in a started one."""

    ok: bool
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    modules: dict[str, str] = Field(default_factory=dict, description="changed module -> file the parent would import")
    jit: dict[str, str] = Field(default_factory=dict, description="FlashInfer's source folders as the engine would compute them")
    imported: dict[str, str] = Field(default_factory=dict, description="module -> file, or why it could not be imported here")
    meta_path: tuple[str, ...] = ()
    seconds: float = 0.0


def verify_overlay(
    python: str,
    overlay: Overlay,
    *,
    env: Mapping[str, str] | None = None,
    python_path: Sequence[str] = (),
    cwd: Path | None = None,
    really_import: bool = False,
    timeout_s: float = 120,
) -> OverlayProof:
    """Asks the engine's interpreter where each changed file would come from, with the overlay first on its path.

    `python_path` is what the arm has on its path after the overlay, `cwd` where it will run. `really_import` also imports the
    changed modules (seconds to a minute; what needs a GPU says so in `imported`). Raises UserError when the interpreter fails.
    """
    begun = time.monotonic()
    surroundings = {**os.environ, **(env or {})}
    surroundings["PYTHONPATH"] = os.pathsep.join([overlay.path, *python_path, *filter(None, [surroundings.get("PYTHONPATH", "")])])
    names = sorted({*(package.name for package in overlay.packages), *(file.module for file in overlay.files if file.module)})
    order = {
        "modules": names,
        "jit": any(package.name == "flashinfer" for package in overlay.packages),
        "import": really_import,
        "timeout_s": timeout_s,
    }
    try:
        done = subprocess.run(
            [python, str(SCRIPT)],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            env=surroundings,
            cwd=cwd or tempfile.gettempdir(),
            timeout=timeout_s * 3,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"engine.python={python}: the overlay could not be verified: {error}") from None
    if done.returncode != 0 or "{" not in done.stdout:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"engine.python={python}: the overlay could not be verified: {last}")
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    problems = [problem for kind in PROCESSES for problem in _problems(kind, answer[kind], overlay, answer["meta_path"])]
    warnings = []
    if answer["aot"] and any(file.package == "flashinfer" and file.module is None for file in overlay.files):
        warnings.append(
            "flashinfer_jit_cache is installed: FlashInfer may load its prebuilt kernels instead of compiling the changed sources"
        )
    really = {name: seen.get("origin") or seen.get("error", "") for name, seen in answer["parent"].get("imported", {}).items()}
    problems += [
        f"{name} was imported from {place}, not from the overlay"
        for name, place in really.items()
        if Path(place).is_absolute() and not _inside(place, overlay)
    ]
    return OverlayProof(
        ok=not problems,
        problems=tuple(problems),
        warnings=tuple(warnings),
        modules={name: str(seen["origin"]) for name, seen in answer["parent"]["modules"].items()},
        jit=answer["parent"]["jit"],
        imported=really,
        meta_path=tuple(answer["meta_path"]),
        seconds=time.monotonic() - begun,
    )


def _problems(kind: str, seen: Mapping[str, Any], overlay: Overlay, meta_path: Sequence[str]) -> list[str]:
    who, modules = PROCESSES[kind], seen["modules"]
    found = []
    for file in overlay.files:
        if file.module is not None:
            found += _module_problem(who, file, modules.get(file.module) or {}, overlay, meta_path)
        else:
            found += _source_problem(who, file, seen["jit"], overlay)
    for package in overlay.packages:
        origin = (modules.get(package.name) or {}).get("origin")
        if not found and (not origin or not _inside(str(origin), overlay)):
            found.append(f"{who} imports {package.name} from {origin}, not from the overlay")
    return found


def _module_problem(who: str, file: PatchedFile, seen: Mapping[str, Any], overlay: Overlay, meta_path: Sequence[str]) -> list[str]:
    origin = seen.get("origin")
    if not origin:
        return [f"{who} finds no module {file.module}: {seen.get('error', 'no finder knows it')}"]
    if not _inside(str(origin), overlay):
        return [
            f"{who} would import {file.module} from {origin}, not from the overlay (found by {seen.get('finder')}; import finders: {', '.join(meta_path)})"
        ]
    if seen.get("sha256") != file.after:
        return [f"{who} would import {origin}, whose content is not the patched one"]
    return []


def _source_problem(who: str, file: PatchedFile, jit: Mapping[str, str], overlay: Overlay) -> list[str]:
    """A changed file that is no Python (CUDA source): it counts where the package looks for its data."""
    roots = [root for name, root in jit.items() if name == "_package_root"] if file.package == "flashinfer" else []
    if file.package == "flashinfer" and not roots:
        return [f"{who}: FlashInfer's source folders could not be computed from flashinfer/jit/env.py"]
    for root in roots:
        if not _inside(root, overlay):
            return [f"{who}: FlashInfer would compile from {root}, not from the overlay"]
    return []


def _inside(place: str, overlay: Overlay) -> bool:
    """By name, not by where links lead: the overlay's unchanged files are links out of it."""
    return Path(os.path.normpath(place)).is_relative_to(overlay.path)
