"""Which SGLang an interpreter has, found without importing it: version, packages, and a hash of the build.

The build hash covers the versions of what makes the engine fast or slow, and the *content* of SGLang's own Python files: an
installed engine that somebody edited is another build, wherever it lies.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.errors import UserError
from runner.records.schema import EngineIdentity

PACKAGES = (
    "sglang",
    "sgl-kernel",
    "sglang-kernel",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "torch",
    "triton",
    "transformers",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "mscclpp",
    "deep-gemm",
    "sgl-deep-gemm",
    "xgrammar",
)

SCRIPT = r"""
import hashlib, importlib.metadata as metadata, importlib.util, json, os, re, sys
packages = {}
records = {}
for name in sys.argv[1:]:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    packages[name] = found.version
    records[name] = hashlib.sha256((found.read_text("RECORD") or "").encode()).hexdigest()[:16]
answer = {"packages": packages, "records": records, "interpreter": sys.version.split()[0], "source": None, "folder": None}
spec = importlib.util.find_spec("sglang")
places = list(spec.submodule_search_locations or []) if spec else []
if places:
    folder = places[0]
    digest = hashlib.sha256()
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if each != "__pycache__")
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(here, name)
                digest.update(os.path.relpath(path, folder).encode() + b"\0")
                with open(path, "rb") as file:
                    digest.update(file.read())
    answer |= {"source": digest.hexdigest()[:16], "folder": folder}
    if "sglang" not in packages:
        for name in ("_version.py", "version.py", "__init__.py"):
            path = os.path.join(folder, name)
            text = open(path).read() if os.path.exists(path) else ""
            found = re.search(r"__version__\s*(?::\s*\w+\s*)?=\s*(?:version\s*=\s*)?['\"]([^'\"]+)", text)
            if found:
                packages["sglang"] = found[1]
                break
print(json.dumps(answer))
"""


def check_interpreter(python: str) -> str:
    """The interpreter's absolute path (links are kept: a virtual environment is known by its path). Raises UserError."""
    path = Path(python).expanduser().absolute()
    if not path.exists():
        raise UserError(
            f"engine.python={python}: no such file. Give the interpreter of an environment that has SGLang, for example "
            f"engine.python=/path/to/venv/bin/python (`make engine-cpu` makes one in .venv-engine)"
        )
    if path.is_dir() or not os.access(path, os.X_OK):
        hint = f"; did you mean {path / 'bin/python'}?" if (path / "bin/python").exists() else ""
        raise UserError(f"engine.python={python}: this is not an executable interpreter{hint}")
    return str(path)


def identify_sglang(python: str, env: Mapping[str, str], expected: str | None = None, kind: str = "sglang") -> EngineIdentity:
    """Asks the interpreter once (a fraction of a second, no import of the engine). Raises UserError naming the path."""
    path = check_interpreter(python)
    answer = _ask([path, "-c", SCRIPT, *PACKAGES], env, python)
    packages: dict[str, str] = answer["packages"]  # type: ignore[assignment]
    version = packages.get("sglang")
    if answer["source"] is None or version is None:
        raise UserError(
            f"engine.python={python}: this interpreter has no sglang. Install it there (`{path} -m pip install sglang`), or name "
            f"another interpreter"
        )
    if expected is not None and version != expected:
        raise UserError(f"engine.version={expected} was asked for, but {python} has sglang {version}; leave engine.version out")
    material = json.dumps([answer["packages"], answer["records"], answer["source"], answer["interpreter"]], sort_keys=True)
    build = hashlib.sha256(material.encode()).hexdigest()[:16]
    return EngineIdentity(kind=kind, version=version, build=build, python=path, packages=packages)


def has_sglang(python: str, env: Mapping[str, str]) -> bool:
    """True when this interpreter would find sglang."""
    try:
        identify_sglang(python, env)
    except UserError:
        return False
    return True


def _ask(argv: Sequence[str], env: Mapping[str, str], python: str) -> dict[str, object]:
    try:
        done = subprocess.run(
            list(argv), env=dict(env), capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise UserError(f"engine.python={python}: the interpreter does not run: {failed}") from None
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, no output"])[-1]
        raise UserError(f"engine.python={python}: this is no working Python interpreter ({said[:300]})") from None
    return dict(answer)
