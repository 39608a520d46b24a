"""Gets released wheels of the engine (never installed, only unpacked) for tests that patch and audit real sources.

    python tests/engine/fetch_wheels.py

They lie in `.cache/wheels` of the checkout and are fetched once, through pip and whatever index pip is configured for.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache" / "wheels"
# SGLang and the FlashInfer that it pins.
PAIRS = {"0.5.9": "0.6.3", "0.5.15.post1": "0.6.12", "0.5.23": "0.7.2"}
# Wheels are chosen for this platform whatever the tests run on: they are read, not run.
TARGET = ("--python-version", "3.12", "--platform", "manylinux_2_34_x86_64", "--platform", "manylinux2014_x86_64", "--platform", "any")


def unpacked(name: str, version: str) -> Path:
    """Folder with the package's sources. Raises RuntimeError with pip's last line when the wheel cannot be had."""
    target = CACHE / f"{name}-{version}"
    if target.is_dir():
        return target
    downloads = CACHE / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    stem = name.replace("-", "_")
    if not list(downloads.glob(f"{stem}-{version}-*.whl")):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                *TARGET,
                f"{name}=={version}",
                "-d",
                downloads,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name}=={version}: {(done.stderr.strip().splitlines() or ['pip said nothing'])[-1]}")
    wheel = next(downloads.glob(f"{stem}-{version}-*.whl"))
    work = target.with_name(f".{target.name}")
    shutil.rmtree(work, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)
    work.rename(target)
    wheel.unlink()
    return target


def pair(version: str) -> tuple[str, str]:
    """Path entries that hold SGLang of that version and its FlashInfer."""
    return str(unpacked("sglang", version)), str(unpacked("flashinfer-python", PAIRS[version]))


if __name__ == "__main__":
    for sglang in PAIRS:
        print(sglang, *pair(sglang))
