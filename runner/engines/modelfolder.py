"""The model's folder, checked before a GPU second is spent: it exists, has every shard its index names, and has a manifest hash."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UserError
from runner.spec.model import ModelSpec

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")


@dataclass(frozen=True)
class ModelFolder:
    """A checked model folder. `manifest` is a hash over the content of small files and the names and sizes of large ones;
    `weight_bytes` is the sum of the weight files; `shards` their number."""

    path: Path
    manifest: str
    shards: int
    weight_bytes: int


def model_folder(model: ModelSpec, env: Mapping[str, str] | None = None, weights_needed: bool | None = None) -> ModelFolder:
    """The folder of the model that is to be served. `weights_needed` null: unless the load format is dummy.

    Raises UserError when no path is given, nothing is there, or a shard that the index names is missing or empty."""
    if model.path is None:
        raise UserError(
            f"model {model.name} has no path: where are its weights? Give model.path=/path/to/folder (config.json, tokenizer, "
            f"*.safetensors) or model.path=org/name of a snapshot that was downloaded before"
        )
    path = resolve_path(model.path, env)
    needed = model.load_format != "dummy" if weights_needed is None else weights_needed
    _check_config(path)
    shards = _check_shards(path, needed)
    return ModelFolder(path, manifest_hash(path), len(shards), sum(each.stat().st_size for each in shards))


def resolve_path(given: str, env: Mapping[str, str] | None = None) -> Path:
    """An existing folder as it is; `org/name` as its newest local snapshot. Nothing is downloaded. Raises UserError."""
    path = Path(given).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.exists():
        raise UserError(f"model.path={given} is a file; give the folder that holds config.json and the weights")
    if _REPOSITORY.fullmatch(given):
        snapshot = _snapshot(given, os.environ if env is None else env)
        if snapshot is not None:
            return snapshot
        raise UserError(
            f"model.path={given}: there is no such folder, and no snapshot of that name in {_hub_folder(os.environ if env is None else env)}. "
            f"Download it first (`hf download {given}`); the runner does not, so that no launch waits for a network"
        )
    raise UserError(f"model.path={given}: there is no such folder")


def _hub_folder(env: Mapping[str, str]) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    home = env.get("HF_HOME") or str(Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    return Path(home).expanduser() / "hub"


def _snapshot(name: str, env: Mapping[str, str]) -> Path | None:
    """The snapshot that `main` points to, else the newest one."""
    repository = _hub_folder(env) / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / "main"
    if reference.is_file():
        named = repository / "snapshots" / reference.read_text(encoding="utf-8").strip()
        if named.is_dir():
            return named.absolute()
    snapshots = sorted((repository / "snapshots").glob("*/"), key=lambda each: each.stat().st_mtime)
    return snapshots[-1].absolute() if snapshots else None


def _check_config(path: Path) -> None:
    config = path / "config.json"
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except OSError:
        found = ", ".join(sorted(each.name for each in path.iterdir())[:10]) or "nothing"
        raise UserError(f"model.path={path}: no config.json there (found: {found})") from None
    except ValueError as failed:
        raise UserError(f"{config} is no JSON: {failed}") from None
    if not isinstance(content, dict):
        raise UserError(f"{config} is no JSON object")


def _check_shards(path: Path, needed: bool) -> list[Path]:
    """The weight files. Raises UserError that counts and names what is missing."""
    present = sorted(each for each in path.iterdir() if each.suffix in WEIGHT_SUFFIXES and each.is_file())
    index = next((path / name for name in INDEX_FILES if (path / name).is_file()), None)
    if not needed:
        return present
    if index is None:
        if not present:
            raise UserError(f"model.path={path}: no weights there (*.safetensors); for random weights say model.load_format=dummy")
        _refuse_empty(present, path)
        return present
    try:
        named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as failed:
        raise UserError(f"{index} is not readable as an index of shards: {failed}") from None
    outside = [name for name in named if Path(name).name != name]
    if outside:
        raise UserError(f"{index} names files outside its folder: {', '.join(outside[:3])}")
    missing = [name for name in named if not (path / name).is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise UserError(f"model.path={path}: {len(missing)} of {len(named)} shards that {index.name} names are missing: {shown}")
    shards = [path / name for name in named]
    _refuse_empty(shards, path)
    return shards


def _refuse_empty(shards: list[Path], path: Path) -> None:
    empty = [each.name for each in shards if each.stat().st_size < 8]
    if empty:
        raise UserError(f"model.path={path}: {', '.join(empty[:5])} is empty; the download was cut, fetch it again")
    # A pointer file of Git LFS is text; a safetensors file begins with the length of its header.
    pointers = [each.name for each in shards if each.stat().st_size < 1024 and each.read_bytes().startswith(b"version https://git-lfs")]
    if pointers:
        raise UserError(f"model.path={path}: {', '.join(pointers[:5])} is a Git LFS pointer, not weights; run `git lfs pull` there")


def manifest_hash(path: Path) -> str:
    """16 hex digits over every file's name and size, and the content of those under 4 MiB and of safetensors headers."""
    digest = hashlib.sha256()
    for each in sorted(path.iterdir()):
        if not each.is_file() or each.name.startswith("."):
            continue
        size = each.stat().st_size
        digest.update(f"{each.name}\0{size}\0".encode())
        with open(each, "rb") as file:
            if size <= 4 << 20:
                digest.update(file.read())
            elif each.suffix == ".safetensors":
                length = min(int.from_bytes(file.read(8), "little"), 16 << 20)
                digest.update(file.read(length))
    return digest.hexdigest()[:16]
