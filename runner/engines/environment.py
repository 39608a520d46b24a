"""The environment of an engine process: a short list of what it needs, and nothing that happens to be set in the shell.

A stray NCCL_ or SGLANG_ variable would treat all arms with something that no record names; a proxy answers the engine's own
warm-up request; a token has no business there. What an arm needs is written in its configuration.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"}
    | {
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CC",
        "CXX",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "XDG_RUNTIME_DIR",
    }
    | {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
)

CACHE_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "SGLANG_CACHE_DIR": "sglang",
}
"""Where each compiler keeps what it made, below one root an engine build and overlay."""


def base_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of this process's environment an engine gets: the kept names and the locale. CUDA_VISIBLE_DEVICES in rising order (Ray
    hands it out unsorted)."""
    given = os.environ if source is None else source
    kept = {name: value for name, value in given.items() if name in KEPT or name.startswith("LC_")}
    devices = kept.get("CUDA_VISIBLE_DEVICES", "")
    if devices and all(word.strip().isdigit() for word in devices.split(",")):
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in sorted(int(word) for word in devices.split(",")))
    return kept


def overlay_hash(overlay: str | None) -> str:
    """A hash of an overlay's own files (links to unchanged files say nothing); 'plain' without an overlay."""
    if overlay is None:
        return "plain"
    digest = hashlib.sha256()
    root = Path(overlay)
    for here, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(here) / name
            if path.suffix == ".pyc" or path.is_symlink() or not path.is_file():
                continue
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def cache_home(cache_root: str | None) -> Path:
    """Root of all compile caches: as configured, else in the user's own cache folder (they are large, and code: not shared)."""
    if cache_root is not None:
        return Path(cache_root).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "engine-flag-runner"


def cache_folder(cache_root: str | None, build: str, overlay: str | None) -> Path:
    """The compile caches of one engine build and overlay."""
    return cache_home(cache_root) / f"{build}-{overlay_hash(overlay)}"


def cache_environment(folder: Path) -> dict[str, str]:
    """Variables that send every compiler to `folder`; the folders are made."""
    made = {}
    for variable, name in CACHE_VARIABLES.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        made[variable] = str(target)
    return made


def python_path(overlay: str | None, extra: Sequence[str]) -> dict[str, str]:
    """PYTHONPATH with the overlay first; nothing when there is nothing to add."""
    places = [*([overlay] if overlay else []), *(str(Path(place).expanduser().absolute()) for place in extra)]
    return {"PYTHONPATH": os.pathsep.join(places)} if places else {}
