"""Packs engine, runner and Ray as archives for a GPU machine without a network (x86-64, Python 3.12, torch 2.11, CUDA 13).

    python tests/engine/gpu/pack.py OUT_DIR [engine] [runner] [ray] [--version 0.5.13.post1] [--max-mb 60] [--wheels FOLDER]

Archives, each with one folder: `engine-VERSION.tar.xz` (`site-VERSION`), `runner.tar.xz` (`runner-site`: the runner's packages),
`ray.tar.xz` (`ray-site`). A version of the engine is a file `engine-VERSION-requirements.txt` beside this script. An archive over
--max-mb is an error. The runner's own code travels as the checkout. --wheels keeps what was downloaded for the next time."""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
DEFAULT_ENGINE = "0.5.15.post1"
# Kernels of other architectures, and FlashAttention's, which the experiments here do not use. MSCCL++ proper (0.4.3 ships it beside its
# own copy inside common_ops, and nothing imports it) is left out too: it is the only binary there that knows NVLink multicast.
ENGINE_LEFT_OUT = ("flash_ops", "sm100", "flashmla_ops", "_mscclpp.", "lib/", "lib64/", "include/")
RAY_LEFT_OUT = (
    "ray/dashboard/client", "ray/jars", "ray/rllib", "ray/serve", "ray/tune", "ray/train", "ray/data", "ray/air", "ray/cpp", "ray/llm",
    "ray/thirdparty_files/psutil/tests", "ray/core/src/ray/thirdparty/redis",
)  # fmt: skip
FOLDERS = {"engine": "site", "runner": "runner-site", "ray": "ray-site"}


def engine_versions() -> list[str]:
    return sorted(path.name.removeprefix("engine-").removesuffix("-requirements.txt") for path in HERE.glob("engine-*-requirements.txt"))


def keep_engine(name: str, wheel: str) -> bool:
    return not (wheel.startswith("sglang_kernel") and any(name.startswith(part) or f"/{part}" in name for part in ENGINE_LEFT_OUT))


def keep_ray(name: str, wheel: str) -> bool:
    return not any(name.startswith(part) for part in RAY_LEFT_OUT)


def keep_all(name: str, wheel: str) -> bool:
    return True


KEEP: dict[str, Callable[[str, str], bool]] = {"engine": keep_engine, "runner": keep_all, "ray": keep_ray}


def download(requirements: Path, target: Path) -> None:
    """Wheels for the GPU machine's Python; sources are built here where a package has no wheel (pure Python ones only)."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--python-version", "3.12", "--implementation", "cp"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    lines = [line.strip() for line in requirements.read_text().splitlines() if line.strip() and not line.startswith("#")]
    pure = [line for line in lines if line.startswith("antlr4")]
    rest = [line for line in lines if line not in pure]
    subprocess.run([*command, "--only-binary=:all:", "-d", str(target), *rest], check=True)
    if pure:
        subprocess.run([sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", str(target), *pure], check=True)


def unpack(wheels: Path, site: Path, keep: Callable[[str, str], bool]) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if keep(member.filename, wheel.name):
                    archive.extract(member, site)
                    mode = member.external_attr >> 16
                    if mode & 0o111:
                        (site / member.filename).chmod(mode & 0o777)


def slim(site: Path) -> None:
    for path in site.rglob("*.a"):
        path.unlink()
    for path in [*list(site.rglob("*.so*")), site / "ray/core/src/ray/raylet/raylet", site / "ray/core/src/ray/gcs/gcs_server"]:
        if path.is_file() and path.stat().st_size > 500_000:
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(site / "pycountry/locales", ignore_errors=True)
    for path in site.glob("*.data"):
        shutil.rmtree(path)


def pack(name: str, out: Path, max_mb: float, version: str = "", wheels: Path | None = None) -> Path:
    """Writes the archive and returns its path; `version` is the engine's. SystemExit when it is over `max_mb`."""
    suffix = f"-{version}" if version else ""
    target = out / f"{name}{suffix}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        site = work / f"{FOLDERS[name]}{suffix}"
        site.mkdir()
        store = (wheels or work / "wheels") / f"{name}{suffix}"
        store.mkdir(parents=True, exist_ok=True)
        download(HERE / f"{name}{suffix}-requirements.txt", store)
        unpack(store, site, KEEP[name])
        slim(site)
        subprocess.run(["tar", "c", "-I", "xz -T0 -6", "-f", str(target), "-C", str(work), site.name], check=True)
    size = target.stat().st_size / 2**20
    print(f"{target.name}: {size:.1f} MiB")
    if size > max_mb:
        raise SystemExit(f"{target.name} is {size:.1f} MiB, over --max-mb {max_mb}")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--max-mb", type=float, default=60)
    parser.add_argument("--version", choices=engine_versions(), default=DEFAULT_ENGINE, help="SGLang in the engine's archive")
    parser.add_argument("--wheels", type=Path, help="where downloads are kept and looked for")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(FOLDERS)
    if unknown:
        raise SystemExit(f"nothing called {', '.join(sorted(unknown))}; choices: {', '.join(FOLDERS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or list(FOLDERS):
        pack(name, arguments.out.resolve(), arguments.max_mb, arguments.version if name == "engine" else "", arguments.wheels)


if __name__ == "__main__":
    main()
