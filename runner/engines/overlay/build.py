"""Builds an overlay: a folder that goes first on the arm's path and holds whole packages as links, own copies where changed.

Layout: TARGET/site/PACKAGE/... is imported, TARGET/overlay.json and overlay.diff record it. Every folder with Python in it is a
real folder of links to files, so that compiled bytecode is written here and never into the installed engine. Files that ask
for their own place (`__file__`) are copied: a link would lead `Path(__file__).resolve()` (FlashInfer finds its CUDA sources
that way) back to the installed package. Folders without Python are one link, unless something below them changes.
"""

import difflib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from runner.engines.audit.packages import Package, installed_packages
from runner.engines.overlay.patches import Hunk, PatchFailed, PatchSet, apply_hunk, patches_for
from runner.errors import UserError
from runner.spec.base import Strict

RECORD = "overlay.json"


class PatchedFile(Strict):
    """One changed file. `file` is relative to the package's folder; hashes are SHA-256 of the content."""

    package: str
    file: str
    before: str
    after: str
    hunks: int

    @property
    def module(self) -> str | None:
        """Dotted module name, None for files that are not Python."""
        if not self.file.endswith(".py"):
            return None
        parts = [self.package, *Path(self.file).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Overlay(Strict):
    """A built overlay. `path` goes first on PYTHONPATH; `digest` names the treatment: it covers what was changed, in which versions."""

    target: str
    path: str
    digest: str
    patches: tuple[str, ...]
    packages: tuple[Package, ...]
    files: tuple[PatchedFile, ...]
    diff: str = Field(default="", description="unified diff, installed against overlay")


def build_overlay(
    python: str,
    patches: Sequence[PatchSet],
    target: Path,
    *,
    packages: Mapping[str, Package] | None = None,
    python_path: Sequence[str] = (),
    links: bool = True,
) -> Overlay:
    """Builds (or reuses, when it holds the same) the overlay of these patch sets for the engine of `python`. Never writes outside
    `target`. `links=False` copies unchanged files instead of linking them: for an overlay that is used where `packages` are not (in a
    container). Raises PatchFailed when a hunk does not match exactly once."""
    if packages is None:
        wanted = sorted({"sglang", *(hunk.package for patch in patches for part in patch.parts for hunk in part.hunks)})
        packages = installed_packages(python, wanted, python_path=python_path)
    changed, hunks = patched_texts(patches, packages)
    target = target.resolve()
    used = tuple(packages[name] for name in sorted({package for package, _ in changed}))
    before = {key: _installed_text(packages, *key) for key in changed}
    files = tuple(
        PatchedFile(package=key[0], file=key[1], before=_sha(before[key]), after=_sha(text), hunks=hunks[key])
        for key, text in sorted(changed.items())
    )
    overlay = Overlay(
        target=str(target),
        path=str(target / "site"),
        digest=_digest(files, used),
        patches=tuple(patch.name for patch in patches),
        packages=used,
        files=files,
        diff="".join(_diff(key, before[key], text) for key, text in sorted(changed.items())),
    )
    if _holds(target, overlay):
        return overlay
    if target.exists() and any(target.iterdir()) and not (target / RECORD).is_file():
        raise UserError(f"{target}: there is something else in this folder; an overlay needs one of its own")
    work = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    try:
        for package in used:
            mine = {file: text for (name, file), text in changed.items() if name == package.name}
            (_link_package if links else _copy_package)(package.folder, work / "site" / package.name, mine)
            # Wheels keep shared libraries beside the package and find them by a path relative to it.
            for libraries in package.folder.parent.glob(f"{package.name}*.libs"):
                place = work / "site" / libraries.name
                place.symlink_to(libraries) if links else shutil.copytree(libraries, place)
        (work / "overlay.diff").write_text(overlay.diff)
        (work / RECORD).write_text(json.dumps(overlay.model_dump(mode="json"), indent=1))
        if target.exists():
            shutil.rmtree(target)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return overlay


def patched_texts(
    patches: Sequence[PatchSet], packages: Mapping[str, Package]
) -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], int]]:
    """New contents by (package, file), and how many hunks each took. Reads, writes nothing. Raises PatchFailed."""
    if "sglang" not in packages:
        raise UserError("the engine's environment has no sglang package to patch")
    versions = {name: package.version for name, package in packages.items()}
    texts: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    for patch in patches:
        for hunk in patches_for(patch, versions):
            key = (hunk.package, hunk.file)
            shown = f"{hunk.package} {versions[hunk.package]}: {hunk.package}/{hunk.file}"
            text = texts[key] if key in texts else _read(packages[hunk.package].folder / hunk.file, shown, hunk)
            texts[key] = apply_hunk(text, hunk, shown)
            counts[key] = counts.get(key, 0) + 1
    for (package, file), text in texts.items():
        if file.endswith(".py"):
            try:
                compile(text, f"{package}/{file}", "exec", dont_inherit=True)
            except SyntaxError as error:
                raise PatchFailed(f"{package}/{file}: the patched file does not compile: {error}", file=file) from None
    return texts, counts


def load_overlay(target: Path) -> Overlay:
    """The record of a built overlay. Raises UserError when there is none."""
    record = target / RECORD
    if not record.is_file():
        raise UserError(f"{target}: no overlay was built here")
    return Overlay.model_validate_json(record.read_text())


def _read(path: Path, shown: str, hunk: Hunk) -> str:
    if not path.is_file():
        raise PatchFailed(
            f"{shown}: there is no such file. Looked for:\n    {hunk.find.strip().splitlines()[0]}", file=shown, sought=hunk.find, found=0
        )
    return path.read_bytes().decode("utf-8")


def _installed_text(packages: Mapping[str, Package], package: str, file: str) -> str:
    return (packages[package].folder / file).read_bytes().decode("utf-8")


def _link_package(source: Path, target: Path, changed: Mapping[str, str]) -> None:
    """Makes `target` a copy of `source` in links; `changed` are new contents by relative path."""
    python_below = _folders_with_python(source)
    changed_below = {parent for file in changed for parent in Path(file).parents}
    # Bytecode that is trusted without a look at its source would hide the change.
    stale = {str(Path(file).parent / "__pycache__" / Path(file).stem) + "." for file in changed if file.endswith(".py")}

    def link(folder: Path, relative: Path) -> None:
        (target / relative).mkdir(parents=True)
        with os.scandir(folder) as entries:
            for entry in entries:
                place = relative / entry.name
                if entry.name.endswith(".pyc") and any(str(place).startswith(prefix) for prefix in stale):
                    continue
                if entry.is_dir():
                    if place in python_below or place in changed_below:
                        link(Path(entry.path), place)
                    else:
                        (target / place).symlink_to(entry.path)
                elif str(place) in changed:
                    (target / place).write_bytes(changed[str(place)].encode("utf-8"))
                elif entry.name.endswith(".py") and b"__file__" in Path(entry.path).read_bytes():
                    shutil.copy2(entry.path, target / place)
                else:
                    (target / place).symlink_to(entry.path)

    link(source, Path())


def _copy_package(source: Path, target: Path, changed: Mapping[str, str]) -> None:
    """Makes `target` a copy of `source` with `changed` contents by relative path; bytecode stays behind."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for file, text in changed.items():
        (target / file).write_bytes(text.encode("utf-8"))


def _folders_with_python(source: Path) -> set[Path]:
    found: set[Path] = set()
    for folder, _, files in os.walk(source, followlinks=True):
        if any(name.endswith((".py", ".pyc")) for name in files):
            place = Path(folder).relative_to(source)
            found |= {place, *place.parents}
    return found


def _holds(target: Path, overlay: Overlay) -> bool:
    try:
        return load_overlay(target) == overlay and all(
            _sha((Path(overlay.path) / file.package / file.file).read_bytes().decode("utf-8")) == file.after for file in overlay.files
        )
    except (UserError, ValueError, OSError):
        return False


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _digest(files: Sequence[PatchedFile], packages: Sequence[Package]) -> str:
    body = [[package.name, package.version] for package in packages], [[file.package, file.file, file.after] for file in files]
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _diff(key: tuple[str, str], before: str, after: str) -> str:
    name = "/".join(key)
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"installed/{name}", f"overlay/{name}"))
