"""Patch sets: source changes as data, by engine version. A set is a folder of YAML or JSON files, or one such file.

# experiments/NAME/patches/SET/anything.yaml
engine: ">=0.5.14,<0.5.18"        # which sglang versions this file is for
description: why it exists, and where the facts come from
hunks:
  - package: sglang               # default
    file: srt/layers/communicator.py
    why: the gate leaves this architecture out
    find: |                       # must occur exactly once in the installed file
      exact text
    replace: |
      new text
  - package: flashinfer
    versions: "<0.6.17"           # of this package; outside it the hunk is not needed
    file: jit/comm.py
    ...
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, ValidationError, field_validator

from runner.errors import UserError, instead
from runner.spec.base import Strict

SUFFIXES = (".yaml", ".yml", ".json")


class PatchFailed(UserError):
    """A patch set does not fit this engine: the arm is REJECTED, with the file and the text that was looked for."""

    def __init__(self, message: str, *, file: str = "", sought: str = "", found: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.sought = sought
        self.found = found


class Hunk(Strict):
    """One replacement in one file of one package. `file` is relative to the package's folder."""

    package: str = "sglang"
    file: str
    find: str = Field(min_length=1)
    replace: str
    versions: str = Field(default="", description="PEP 440 specifier of the package; outside it the hunk is not needed")
    why: str = ""

    @field_validator("file")
    @classmethod
    def _inside(cls, value: str) -> str:
        if Path(value).is_absolute() or ".." in Path(value).parts:
            raise ValueError(f"{value!r} leaves the package; give a path relative to the package's folder")
        return value

    @field_validator("versions")
    @classmethod
    def _specifier(cls, value: str) -> str:
        return _checked(value)


class PatchPart(Strict):
    """One file of a set: the hunks for a range of engine versions."""

    source: str = ""
    engine: str = ""
    description: str = ""
    hunks: tuple[Hunk, ...] = Field(min_length=1)

    @field_validator("engine")
    @classmethod
    def _specifier(cls, value: str) -> str:
        return _checked(value)


class PatchSet(Strict):
    """A treatment in source form. `digest`: SHA-256 over its files."""

    name: str
    parts: tuple[PatchPart, ...]
    digest: str


def patch_folders(root: Path) -> list[Path]:
    """Where named patch sets live in a checkout: every `experiments/*/patches`."""
    return sorted(path for path in (root / "experiments").glob("*/patches") if path.is_dir())


def load_patch_set(name_or_path: str | Path, folders: Sequence[Path] = ()) -> PatchSet:
    """A set by path (folder or file), or by name in one of `folders`, first hit wins. Raises UserError with the choices."""
    given = Path(name_or_path).expanduser()
    candidates = [given] if given.exists() else []
    candidates += [folder / f"{name_or_path}{suffix}" for folder in folders for suffix in ("", *SUFFIXES)]
    for place in candidates:
        files = sorted(path for path in place.iterdir() if path.suffix in SUFFIXES) if place.is_dir() else [place] * place.is_file()
        if files:
            texts = [path.read_bytes() for path in files]
            digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
            return PatchSet(name=place.stem if place.is_file() else place.name, parts=tuple(map(_load, files)), digest=digest)
    known = {path.stem if path.is_file() else path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    raise UserError(
        f"there is no patch set {str(name_or_path)!r}{instead(name_or_path, known)}; a folder or file of your own works by its path"
    )


def patches_for(patch_set: PatchSet, versions: Mapping[str, str | None]) -> tuple[Hunk, ...]:
    """The hunks for these package versions (`{"sglang": "0.5.15.post1", "flashinfer": "0.6.12"}`). Raises PatchFailed when no
    file of the set is for this engine version, or a package that a hunk changes is missing."""
    engine = versions.get("sglang")
    fitting = [part for part in patch_set.parts if _fits(part.engine, engine)]
    if not fitting:
        ranges = "; ".join(part.engine or "any" for part in patch_set.parts)
        raise PatchFailed(
            f"patch set {patch_set.name} has no hunks for sglang {engine or 'of unknown version'}; it covers: {ranges}. "
            f"`action=audit` shows where the gates are in the installed source; a file with that version range can be added to the set"
        )
    hunks = []
    for hunk in (hunk for part in fitting for hunk in part.hunks):
        if hunk.package not in versions:
            raise PatchFailed(
                f"patch set {patch_set.name} changes {hunk.package}/{hunk.file}, but {hunk.package} is not installed there", file=hunk.file
            )
        if _fits(hunk.versions, versions[hunk.package]):
            hunks.append(hunk)
    return tuple(hunks)


def apply_hunk(text: str, hunk: Hunk, shown: str) -> str:
    """`text` with the hunk applied. Raises PatchFailed unless the text that is looked for occurs exactly once."""
    count = text.count(hunk.find)
    if count != 1:
        raise PatchFailed(
            f"{shown}: the text to replace occurs {count} times, it must occur exactly once. Looked for:\n{_quoted(hunk.find)}",
            file=shown,
            sought=hunk.find,
            found=count,
        )
    return text.replace(hunk.find, hunk.replace)


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip("\n").splitlines())


def _checked(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise ValueError(f"{value!r} is no version range; write for example '>=0.5.14,<0.5.18'") from None
    return value


def _fits(specifier: str, version: str | None) -> bool:
    if not specifier:
        return True
    if version is None:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _load(path: Path) -> PatchPart:
    try:
        content: Any = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not readable as {path.suffix[1:]}: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: a patch file is a mapping with engine, description and hunks")
    try:
        return PatchPart.model_validate({"source": path.name, **content})
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        raise UserError(f"{path}: {where}") from None
