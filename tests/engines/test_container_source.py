"""What lies in an image: its source for an audit, its packages for an overlay. Through the strict stand-in for docker."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.actions.audit import perform
from runner.actions.ground import Ground, reader
from runner.engines.audit.packages import packages_in
from runner.engines.base import LaunchFailed
from runner.engines.container import ContainerEngine
from runner.engines.gpus import GpuDevice, Gpus
from runner.errors import UserError
from runner.execution.treatment import Overlays
from runner.records.paths import RootPaths
from runner.spec.engine import EngineSpec
from runner.spec.model import ModelSpec
from tests.actions.example import settings_of
from tests.engines import fake_docker
from tests.engines.source_trees import source_tree
from tests.engines.test_container import asked
from tests.engines.test_sglang import order_of

VERSION = "0.5.15.post1"
FACTORS: dict[str, object] = {
    name: {"name": name, "levels": {"off": {}, "on": {}}} for name in ("mscclpp", "allreduce_fusion", "sm120_fusion")
}
MODEL = ModelSpec(name="tiny", hidden_size=64, num_layers=2)


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """A docker whose image holds excerpts of the real source of 0.5.15.post1, and a compiled module."""
    path = fake_docker.write(tmp_path / "docker")
    site = source_tree(VERSION, tmp_path / "docker" / "site")
    (site / "flashinfer" / "native.abi3.so").write_bytes(b"\x7fELF")
    (site / "sglang" / "__pycache__").mkdir()
    (site / "sglang" / "__pycache__" / "x.pyc").write_bytes(b"stale")
    (site / f"sglang-{VERSION}.dist-info").mkdir()
    (site / f"sglang-{VERSION}.dist-info" / "METADATA").write_text(f"Name: sglang\nVersion: {VERSION}\n")
    return path


@pytest.fixture
def spec(docker: Path, tmp_path: Path) -> EngineSpec:
    return EngineSpec(kind="container", image="fake/sglang:1", container_runtime=str(docker), cache_root=str(tmp_path / "caches"))


def audited(spec: EngineSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], json_output: bool) -> str:
    engine = spec.model_dump(include={"kind", "image", "container_runtime", "cache_root"})
    assert perform(settings_of(tmp_path, engine=engine, factors=FACTORS, json=json_output), []) == 0
    return capsys.readouterr().out


def test_an_audit_of_an_image_reads_the_same_gates_as_one_of_its_files(
    spec: EngineSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str], docker: Path
) -> None:
    result = json.loads(audited(spec, tmp_path, capsys, True))
    assert result["image"] == "fake/sglang:1" and result["packages"]["sglang"] == VERSION
    engine = {"kind": "sglang", "python": str(tmp_path / "docker" / "site")}
    perform(settings_of(tmp_path, engine=engine, factors=FACTORS, json=True), [])
    here = json.loads(capsys.readouterr().out)
    places = [[(gate["file"], gate["line"], gate["gives"]) for gate in flag["gates"]] for flag in result["flags"]]
    assert places == [[(gate["file"], gate["line"], gate["gives"]) for gate in flag["gates"]] for flag in here["flags"]]
    (fusion,) = [flag for flag in result["flags"] if flag["flag"] == "allreduce_fusion"]
    assert any(gate["file"].endswith("communicator.py") and gate["gives"] == "closed" for gate in fusion["gates"])
    assert all("--network=none" in words and "--gpus" not in words for words in asked(docker) if words[0] == "run")


def test_the_table_names_the_image(spec: EngineSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(spec, tmp_path, capsys, False).startswith(f"Image fake/sglang:1\nGates in sglang {VERSION}")


def test_text_without_content_of_what_is_compiled_and_everything_without_bytecode(spec: EngineSpec, tmp_path: Path) -> None:
    engine = ContainerEngine(spec)
    text = engine.copy_source(tmp_path / "text")
    assert (text / "flashinfer" / "native.abi3.so").read_bytes() == b"" and (text / "sglang" / "version.py").is_file()
    everything = engine.copy_source(tmp_path / "all", ["sglang", "flashinfer"], everything=True)
    assert (everything / "flashinfer" / "native.abi3.so").read_bytes() == b"\x7fELF"
    assert (everything / "flashinfer/data/csrc/trtllm_allreduce_fusion.cu").is_file() and not list(everything.rglob("*.pyc"))
    assert packages_in(everything)["sglang"].version == VERSION


def test_which_variables_an_image_reads_is_told_without_its_files_being_here(spec: EngineSpec, tmp_path: Path) -> None:
    engine = ContainerEngine(spec)
    source = engine.source()
    shutil.rmtree(tmp_path / "docker" / "site")
    assert engine.source() == source, "copied once a build"
    settings = settings_of(tmp_path, engine=spec.model_dump(include={"kind", "image", "container_runtime", "cache_root"}))
    ask = reader(Ground(settings, RootPaths(tmp_path), "container", VERSION, engine, engine.identify()))
    assert ask is not None and ask(["SGLANG_MSCCLPP_MAX_BYTES", "NCCL_ALGO"]) == {"SGLANG_MSCCLPP_MAX_BYTES": False, "NCCL_ALGO": None}


def test_an_image_without_the_engine(spec: EngineSpec, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "docker" / "site" / "sglang")
    with pytest.raises(UserError, match="source cannot be copied"):
        ContainerEngine(spec).copy_source(tmp_path / "source")


def test_a_source_patch_becomes_an_overlay_that_needs_nothing_of_the_image(spec: EngineSpec, tmp_path: Path) -> None:
    engine = ContainerEngine(spec)
    python = engine.identify().python
    assert python is not None
    overlays = Overlays(tmp_path / "overlays", python, packages=engine.packages)
    order = order_of(spec, MODEL, tmp_path, patches=("sm120_fusion",))
    overlay = overlays.of(order)
    assert overlay is not None and not [path for path in Path(overlay.path).rglob("*") if path.is_symlink()]
    find = "import importlib.util; print(importlib.util.find_spec('sglang').origin)"
    done = subprocess.run(
        [sys.executable, "-c", find], env={"PYTHONPATH": overlay.path}, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip().startswith(overlay.path)
    assert overlays.of(order) is overlay
    diff = (Path(overlay.target) / "overlay.diff").read_text()
    assert "+" in diff and "communicator.py" in diff


def test_a_patch_that_does_not_fit_the_image_is_refused_with_what_was_looked_for(spec: EngineSpec, tmp_path: Path) -> None:
    source = tmp_path / "docker/site/sglang/srt/layers/communicator.py"
    source.write_text(source.read_text().replace("_is_sm100_supported", "_is_something"))
    engine = ContainerEngine(spec)
    python = engine.identify().python
    assert python is not None
    overlays = Overlays(tmp_path / "overlays", python, packages=engine.packages)
    with pytest.raises(LaunchFailed) as refused:
        overlays.of(order_of(spec, MODEL, tmp_path, patches=("sm120_fusion",)))
    assert refused.value.failure.kind == "patch_does_not_fit" and "communicator.py" in refused.value.failure.line


def test_the_probe_asks_with_the_gpus_or_not_at_all(spec: EngineSpec, docker: Path) -> None:
    engine, gpus = ContainerEngine(spec), Gpus(None)
    assert engine.probe(gpus) == {} and not (docker.parents[1] / "asked.jsonl").exists()
    gpus.devices = [GpuDevice(0, "GPU-a", "H200", 1, 90)]
    assert engine.probe(gpus)["importable"]["mscclpp"] is False
    assert "--gpus" in asked(docker)[-1]
