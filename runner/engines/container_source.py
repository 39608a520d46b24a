"""Copies packages out of an image: as an archive on the container's standard output, so that nothing here belongs to the image's user."""

import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.errors import UserError

# Runs in the image's interpreter. Finds packages by their spec, which imports none of them. `text`: source and JSON files, and the
# names (no content) of compiled modules, which is what is read; `all`: every file but bytecode, which is what an overlay holds.
SCRIPT = """
import importlib.metadata, importlib.util, io, os, sys, tarfile
what, names = sys.argv[1], sys.argv[2:]
TEXT = (".py", ".json", ".cu", ".cuh", ".cc", ".cpp", ".h", ".hpp", ".rs", ".sh")
left_out = {"__pycache__"} if what == "all" else {"__pycache__", "cutlass"}
out = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
def add(name, data, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    out.addfile(entry, io.BytesIO(data))
for name in names:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        spec = None
    for place in list(spec.submodule_search_locations or [])[:1] if spec else []:
        beside = os.path.dirname(place)
        libraries = [each for each in sorted(os.listdir(beside)) if each.startswith(name) and each.endswith(".libs")] if what == "all" else []
        for each in libraries:
            for file in sorted(os.listdir(os.path.join(beside, each))):
                with open(os.path.join(beside, each, file), "rb") as library:
                    add(os.path.join(each, file), library.read(), 0o755)
        for here, folders, files in os.walk(place, followlinks=True):
            folders[:] = sorted(each for each in folders if each not in left_out)
            for each in sorted(files):
                path = os.path.join(here, each)
                target = os.path.join(name, os.path.relpath(path, place))
                if not os.path.isfile(path) or each.endswith(".pyc"):
                    continue
                if what == "all" or each.endswith(TEXT):
                    with open(path, "rb") as file:
                        add(target, file.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
                elif each.endswith(".so"):
                    add(target, b"")
        for distribution in (name, name.replace("_", "-"), name + "-python", name.replace("sgl_", "sglang-")):
            try:
                add("%s-%s.dist-info/INSTALLER" % (name, importlib.metadata.version(distribution)), b"image")
                break
            except importlib.metadata.PackageNotFoundError:
                continue
out.close()
"""
TIMEOUT_S = 900.0


def copy_packages(argv: Sequence[str], env: Mapping[str, str], folder: Path, image: str) -> Path:
    """Runs `argv`, which ends with the script above and its words, and unpacks what it writes below `folder` (`folder/sglang/...`, and
    `folder/sglang-VERSION.dist-info` for the version). Raises UserError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as archive:
        try:
            done = subprocess.run(
                list(argv),
                stdout=archive,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                env=dict(env),
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as failed:
            raise UserError(f"engine.image={image}: its source cannot be copied ({failed})") from None
        archive.seek(0)
        try:
            _unpack(archive, folder)
        except tarfile.TarError as failed:
            if done.returncode == 0:
                raise UserError(f"engine.image={image}: its source cannot be copied ({failed})") from None
    if done.returncode != 0 or not (folder / "sglang").is_dir():
        said = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"engine.image={image}: its source cannot be copied ({said[:300]})")
    return folder


def _unpack(archive: object, folder: Path) -> None:
    """Plain files only, each inside `folder`: an image may hold anything."""
    root = folder.resolve()
    with tarfile.open(fileobj=archive, mode="r:") as packed:  # type: ignore[call-overload]
        for entry in packed:
            target = (root / entry.name).resolve()
            if not entry.isfile() or not target.is_relative_to(root):
                continue
            content = packed.extractfile(entry)
            assert content is not None
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
            target.chmod(entry.mode & 0o755)
