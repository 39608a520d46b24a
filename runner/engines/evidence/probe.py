"""The environment probe: what the engine's interpreter can import and sees, without work on a GPU. One subprocess."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from runner.errors import UserError

MODULES = (
    "mscclpp",
    "mscclpp.ext",
    "flashinfer",
    "flashinfer.comm",
    "flashinfer.comm.pcie_ipc_ar",
    "sgl_kernel",
    "deep_ep",
    "deep_gemm",
    "triton",
)
TIMEOUT_S = 180.0
_MARK = "ENVIRONMENT-PROBE:"

# Runs in the engine's interpreter: only the standard library, torch and the modules asked for. Devices are asked of the driver library
# through torch without creating a context, so nothing is allocated on a GPU.
SCRIPT = """
import importlib, importlib.metadata as meta, json, os, sys
asked = json.loads(sys.argv[1])
out = {"engine_version": None, "python": sys.version.split()[0], "torch": None, "cuda": None, "capability": None, "gpus": 0,
       "gpu_names": [], "importable": {}, "import_errors": {}, "packages": {}}
for name in ("sglang", "flashinfer-python", "flashinfer-cubin", "sgl-kernel", "sglang-kernel", "torch", "triton", "transformers", "mscclpp"):
    try:
        out["packages"][name] = meta.version(name)
    except Exception:
        pass
out["engine_version"] = out["packages"].get("sglang")
try:
    import torch
    out["torch"], out["cuda"] = torch.__version__, torch.version.cuda
    if torch.version.cuda and torch.cuda.is_available():
        out["gpus"] = torch.cuda.device_count()
        out["capability"] = list(torch.cuda.get_device_capability(0))
        out["gpu_names"] = [torch.cuda.get_device_name(i) for i in range(out["gpus"])]
except BaseException as problem:
    out["import_errors"]["torch"] = str(problem)[:300]
for name in asked:
    try:
        importlib.import_module(name)
        out["importable"][name] = True
    except BaseException as problem:
        out["importable"][name] = False
        out["import_errors"][name] = (str(problem) or type(problem).__name__)[:300]
print("\\n%s" + json.dumps(out), flush=True)
os._exit(0)
"""


def run_probe(
    python: str, env: Mapping[str, str] | None = None, modules: tuple[str, ...] = MODULES, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What `python` can import (`importable`, `import_errors`), its torch, capability ([12, 0] or None) and GPUs.

    `env` is the whole environment of the subprocess (None: inherited), so that overlays and visible devices are those of the arm.
    A probe that takes too long or dies gives {"error": ...} and nothing else: what was not probed proves nothing.
    Raises UserError when there is no such interpreter.
    """
    try:
        done = subprocess.run(
            probe_words(python, modules),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(f"engine.python={python}: no such interpreter; give the python of the engine's environment") from None
    except PermissionError:
        raise UserError(f"engine.python={python} cannot be executed") from None
    except subprocess.TimeoutExpired:
        return {"error": f"the probe took longer than {timeout_s:g} s"}
    return read_probe(done)


def probe_words(python: str, modules: tuple[str, ...] = MODULES) -> list[str]:
    """The command line of the probe."""
    return [python, "-c", SCRIPT.replace("%s", _MARK), json.dumps(modules)]


def read_probe(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What a probe that ended said; {"error": ...} when it said nothing."""
    line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(_MARK)), None)
    if line is None:
        return {"error": f"the probe ended with {done.returncode}: {done.stderr.strip()[-500:]}"}
    found = json.loads(line.removeprefix(_MARK))
    assert isinstance(found, dict)
    return found
