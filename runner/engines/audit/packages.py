"""Where the engine's packages lie, and which versions they are, without importing them."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from runner.errors import UserError
from runner.spec.base import Strict

ENGINE_PACKAGES = ("sglang", "flashinfer", "sgl_kernel", "mscclpp")

# Runs in the engine's interpreter: finds packages by their spec, which imports no top-level package.
_PROBE = """
import importlib.machinery, importlib.metadata, importlib.util, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        continue
    version = None
    for distribution in (name, name.replace("_", "-"), name + "-python", name.replace("sgl_", "sglang-")):
        try:
            version = importlib.metadata.version(distribution)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    if version is None:
        owners = importlib.metadata.packages_distributions().get(name, [])
        version = importlib.metadata.version(owners[0]) if owners else None
    found[name] = {"root": list(spec.submodule_search_locations)[0], "origin": spec.origin, "version": version,
                   "finder": type(spec.loader).__module__ + "." + type(spec.loader).__name__}
json.dump({"packages": found, "python": sys.version.split()[0], "path": sys.path}, sys.stdout)
"""


class Package(Strict):
    """One importable package of the engine's environment. `root`: the folder that holds its `__init__.py`."""

    name: str
    version: str | None
    root: str
    finder: str = Field(default="", description="which import finder answered for it")

    @property
    def folder(self) -> Path:
        return Path(self.root)


def installed_packages(
    python: str,
    names: Sequence[str] = ENGINE_PACKAGES,
    *,
    python_path: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, Package]:
    """The packages among `names` that the interpreter would import. `python_path` goes first. Raises UserError when the
    interpreter does not run."""
    surroundings = {**os.environ, **(env or {}), "PYTHONDONTWRITEBYTECODE": "1"}
    path = [*python_path, *filter(None, [surroundings.get("PYTHONPATH", "")])]
    if path:
        surroundings["PYTHONPATH"] = os.pathsep.join(path)
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, json.dumps(list(names))],
            capture_output=True,
            text=True,
            env=surroundings,
            timeout=120,
            cwd=tempfile.gettempdir(),
            check=False,
        )
    except FileNotFoundError:
        raise UserError(f"engine.python={python}: there is no such file; give the interpreter of the engine's environment") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"engine.python={python}: the interpreter does not answer: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"engine.python={python}: the interpreter failed while packages were looked for: {last}")
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    return {
        name: Package(name=name, version=found["version"] or version_in(Path(found["root"])), root=found["root"], finder=found["finder"])
        for name, found in answer["packages"].items()
    }


def packages_in(folder: Path, names: Sequence[str] = ENGINE_PACKAGES) -> dict[str, Package]:
    """The same for a folder of sources: one that holds the packages (site-packages, an unpacked wheel), the `python` folder of
    a checkout, or a package itself."""
    places = [folder, folder / "python"]
    if folder.name in names and (folder / "__init__.py").is_file():
        places.insert(0, folder.parent)
    found = {}
    for name in names:
        for place in places:
            root = place / name
            if root.is_dir() and any(root.glob("*.py")):
                found[name] = Package(name=name, version=version_in(root), root=str(root), finder="folder")
                break
    return found


def packages_of(source: str | Path, names: Sequence[str] = ENGINE_PACKAGES, *, python_path: Sequence[str] = ()) -> dict[str, Package]:
    """`source` is a folder of sources, or the engine's interpreter (`python_path` then goes first on its path)."""
    path = Path(source)
    return packages_in(path, names) if path.is_dir() else installed_packages(str(source), names, python_path=python_path)


def version_in(root: Path) -> str | None:
    """Version of a package from its distribution's folder beside it, else from a version file inside it, else None."""
    names = {root.name, f"{root.name}_python", root.name.replace("sgl_", "sglang_")}
    for name in names:
        for info in sorted(root.parent.glob(f"{name}-*.dist-info")):
            return info.name.removesuffix(".dist-info").split("-", 1)[1]
    for file in ("_version.py", "version.py", "_build_meta.py"):
        path = root / file
        if path.is_file():
            hit = re.search(r"^(?:__version__|version)\b[^=\n]*=[^\"'\n]*[\"']([0-9][^\"']*)[\"']", path.read_text(errors="replace"), re.M)
            if hit:
                return hit.group(1)
    return None
