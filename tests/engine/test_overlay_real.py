"""The shipped source patches on the real wheels: apply, compile, open the gate for SM120, and be what is imported."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.engines.audit import audit, packages_in
from runner.engines.overlay import Overlay, build_overlay, load_patch_set, patch_folders, verify_overlay
from tests.engine.engine_python import ENGINE_PYTHON
from tests.engine.fetch_wheels import PAIRS, pair

pytestmark = pytest.mark.engine
REPO = Path(__file__).parent.parent.parent
GATES = {
    "0.5.9": ("srt/layers/communicator.py", "apply_flashinfer_allreduce_fusion"),
    "0.5.15.post1": ("srt/layers/communicator.py", "apply_flashinfer_allreduce_fusion"),
    "0.5.23": ("srt/layers/layer_boundary/residual/add_norm.py", "flashinfer_ar_fusion_applies"),
}


@pytest.fixture(scope="module", params=list(PAIRS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def overlay(version: str, tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    patches = [load_patch_set("sm120_fusion", patch_folders(REPO))]
    return build_overlay(ENGINE_PYTHON, patches, tmp_path_factory.mktemp("overlay") / version, python_path=pair(version))


def gate_answer(source: str, function: str, capability: int) -> bool:
    """Runs the real gate's text with the predicates of a node of that capability, everything else in favour of fusion."""
    tree = ast.parse(source)
    gate = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    settings = SimpleNamespace(
        enable_flashinfer_allreduce_fusion=True,
        flashinfer_allreduce_fusion_backend="trtllm",
        comm=SimpleNamespace(flashinfer_allreduce_fusion_backend="trtllm"),
    )
    names = {
        "_is_sm90_supported": capability // 10 == 9,
        "_is_sm100_supported": capability // 10 == 10,
        "_is_sm120_supported": capability // 10 == 12,
        "_is_flashinfer_available": True,
        "FUSE_ALLREDUCE_MAX_BATCH_SIZE": 2048,
        "is_dp_attention_enabled": lambda: False,
        "get_global_server_args": lambda: settings,
        "get_exec": lambda: settings,
        "is_flashinfer_allreduce_unavailable": lambda: False,
        "uses_cutedsl_ar_fusion": lambda: False,
    }
    exec(compile(ast.Module([gate], []), "gate", "exec"), names)
    return bool(names[function](16))  # type: ignore[operator]


def test_the_patch_compiles_and_its_gate_admits_sm120(version: str, overlay: Overlay) -> None:
    for file in overlay.files:
        if file.file.endswith(".py"):
            compile((Path(overlay.path) / file.package / file.file).read_text(), file.file, "exec")
    file, function = GATES[version]
    installed = (Path(pair(version)[0]) / "sglang" / file).read_text()
    patched = (Path(overlay.path) / "sglang" / file).read_text()
    assert [gate_answer(installed, function, capability) for capability in (90, 100, 120, 89)] == [True, True, False, False]
    assert [gate_answer(patched, function, capability) for capability in (90, 100, 120, 89)] == [True, True, True, False]


def test_the_audit_of_the_overlay_finds_no_closed_gate(version: str, overlay: Overlay) -> None:
    installed = {**packages_in(Path(pair(version)[0])), **packages_in(Path(pair(version)[1]))}
    before = audit(pair(version)[0], 120, 8, link="pcie", flags=["allreduce_fusion"], packages=installed)
    after = audit(overlay.path, 120, 8, link="pcie", flags=["allreduce_fusion"], packages={**installed, **packages_in(Path(overlay.path))})
    paths = ("FUSE_ALLREDUCE_MAX_BATCH_SIZE", "is_sm90", "supported_major_versions", "cuMulticastGetGranularity")

    def closed(gates: list) -> list[str]:  # type: ignore[type-arg]
        return [
            f"{gate.file}:{gate.line} {gate.condition}"
            for gate in gates
            if gate.own and gate.gives in {"raises", "closed"} and any(word in gate.condition for word in paths)
        ]

    assert closed(before)
    assert not closed(after)


def test_the_overlay_is_what_the_engines_interpreter_imports(version: str, overlay: Overlay) -> None:
    proof = verify_overlay(ENGINE_PYTHON, overlay, python_path=pair(version))
    assert proof.ok, proof.problems
    assert set(proof.modules) >= {file.module for file in overlay.files}
    if any(file.package == "flashinfer" for file in overlay.files):
        assert proof.jit["FLASHINFER_CSRC_DIR"] == f"{overlay.path}/flashinfer/data/csrc"


def test_the_real_engine_really_imports_the_patched_modules(tmp_path: Path) -> None:
    flashinfer = pair("0.5.15.post1")[1]
    patches = [load_patch_set("sm120_fusion", patch_folders(REPO))]
    overlay = build_overlay(ENGINE_PYTHON, patches, tmp_path / "overlay", python_path=[flashinfer])
    proof = verify_overlay(
        ENGINE_PYTHON, overlay, python_path=[flashinfer], really_import=True, env={"SGLANG_USE_CPU_ENGINE": "1"}, timeout_s=300
    )
    assert proof.ok, proof.problems
    assert proof.imported["sglang.srt.layers.communicator"] == f"{overlay.path}/sglang/srt/layers/communicator.py"


def test_the_installed_engine_is_not_written_to(tmp_path: Path) -> None:
    sources = Path(pair("0.5.9")[0]) / "sglang"
    before = {path: path.stat().st_mtime_ns for path in sources.rglob("*")}
    overlay = build_overlay(
        sys.executable, [load_patch_set("sm120_fusion", patch_folders(REPO))], tmp_path / "o", python_path=pair("0.5.9")
    )
    verify_overlay(ENGINE_PYTHON, overlay, python_path=pair("0.5.9"))
    assert {path: path.stat().st_mtime_ns for path in sources.rglob("*")} == before
