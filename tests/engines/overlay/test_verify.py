"""The proof that the overlay's files are imported: in the parent, in spawned and started children, past every kind of install."""

import sys
import textwrap
from pathlib import Path

import pytest

from runner.engines.audit import packages_in
from runner.engines.overlay import Hunk, Overlay, OverlayProof, PatchPart, PatchSet, build_overlay, verify_overlay
from runner.errors import UserError
from tests.engines.source_trees import small_package, source_tree

FILES = {"sglang/__init__.py": "raise RuntimeError('never imported by the proof')\n", "sglang/srt/gate.py": "ON = False\n"}


def patch(package: str, file: str, find: str, replace: str) -> PatchSet:
    return PatchSet(name="p", parts=(PatchPart(hunks=(Hunk(package=package, file=file, find=find, replace=replace),)),), digest="")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return small_package(tmp_path / "site", FILES)


@pytest.fixture
def overlay(site: Path, tmp_path: Path) -> Overlay:
    return build_overlay(
        sys.executable, [patch("sglang", "srt/gate.py", "ON = False", "ON = True")], tmp_path / "overlay", packages=packages_in(site)
    )


def verify(overlay: Overlay, *path: Path, **env: str) -> OverlayProof:
    return verify_overlay(sys.executable, overlay, python_path=[str(place) for place in path], env=env, timeout_s=30)


def test_the_overlay_wins_over_a_plain_install_without_importing_it(overlay: Overlay, site: Path) -> None:
    proof = verify(overlay, site)
    assert proof.ok, proof.problems
    assert proof.modules["sglang.srt.gate"] == f"{overlay.path}/sglang/srt/gate.py"


def finder_site(tmp_path: Path, site: Path, place: str) -> Path:
    """An editable install by an import finder, as setuptools (append) and scikit-build-core (insert) make them."""
    code = f"""
    import importlib.machinery, importlib.util, sys
    class EditableFinder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == "sglang":
                return importlib.util.spec_from_file_location(name, {str(site / "sglang" / "__init__.py")!r},
                                                              submodule_search_locations=[{str(site / "sglang")!r}])
    sys.meta_path.{place}
    """
    return small_package(tmp_path / "hooks", {"sitecustomize.py": textwrap.dedent(code)})


def test_an_editable_install_whose_finder_comes_last_loses_to_the_overlay(overlay: Overlay, site: Path, tmp_path: Path) -> None:
    proof = verify(overlay, finder_site(tmp_path, site, "append(EditableFinder)"))
    assert proof.ok, proof.problems
    assert "EditableFinder" in proof.meta_path


def test_an_editable_install_whose_finder_comes_first_is_found_out(overlay: Overlay, site: Path, tmp_path: Path) -> None:
    proof = verify(overlay, finder_site(tmp_path, site, "insert(0, EditableFinder)"))
    assert not proof.ok
    assert any("not from the overlay" in problem and "EditableFinder" in problem for problem in proof.problems)


def test_a_path_file_that_puts_the_install_first_is_found_out(overlay: Overlay, site: Path, tmp_path: Path) -> None:
    hooks = small_package(tmp_path / "hooks", {"sitecustomize.py": f"import sys; sys.path.insert(0, {str(site)!r})\n"})
    proof = verify(overlay, hooks)
    assert not proof.ok
    assert any(str(site) in problem for problem in proof.problems)


def test_children_are_checked_on_their_own(overlay: Overlay, site: Path, tmp_path: Path) -> None:
    code = f"import multiprocessing, os, sys\nif os.environ.get('MARK'): sys.path.insert(0, {str(site)!r})\nos.environ['MARK'] = '1'\n"
    proof = verify(overlay, small_package(tmp_path / "hooks", {"sitecustomize.py": code}))
    assert not proof.ok
    assert all("child" in problem for problem in proof.problems), proof.problems


def test_content_that_is_not_the_patched_one_is_found_out(overlay: Overlay, site: Path) -> None:
    (Path(overlay.path) / "sglang/srt/gate.py").write_text("ON = 0\n")
    assert any("not the patched one" in problem for problem in verify(overlay, site).problems)


def test_really_importing_says_what_cannot_be_imported_here(overlay: Overlay, site: Path) -> None:
    proof = verify_overlay(sys.executable, overlay, python_path=[str(site)], really_import=True, timeout_s=30)
    assert "never imported by the proof" in proof.imported["sglang.srt.gate"]
    assert proof.ok


CUDA = ("flashinfer", "data/csrc/trtllm_allreduce_fusion.cu", "Stand-in", "Patched stand-in")


def test_flashinfer_compiles_from_the_overlay(tmp_path: Path) -> None:
    site = source_tree("0.5.15.post1", tmp_path / "site")
    overlay = build_overlay(sys.executable, [patch(*CUDA)], tmp_path / "overlay", packages=packages_in(site))
    proof = verify(overlay, site)
    assert proof.ok, proof.problems
    assert proof.jit["FLASHINFER_CSRC_DIR"] == f"{overlay.path}/flashinfer/data/csrc"
    assert "Patched stand-in" in (Path(proof.jit["FLASHINFER_CSRC_DIR"]) / "trtllm_allreduce_fusion.cu").read_text()


def test_flashinfer_sources_that_resolve_to_the_install_are_found_out(tmp_path: Path) -> None:
    site = source_tree("0.5.15.post1", tmp_path / "site")
    overlay = build_overlay(sys.executable, [patch(*CUDA)], tmp_path / "overlay", packages=packages_in(site))
    env = Path(overlay.path) / "flashinfer/jit/env.py"
    env.unlink()
    env.symlink_to(site / "flashinfer/jit/env.py")  # what a plain farm of links would do
    proof = verify(overlay, site)
    assert any("FlashInfer would compile from" in problem for problem in proof.problems)


def test_prebuilt_kernels_are_warned_of(tmp_path: Path) -> None:
    site = small_package(source_tree("0.5.15.post1", tmp_path / "site"), {"flashinfer_jit_cache/__init__.py": ""})
    overlay = build_overlay(sys.executable, [patch(*CUDA)], tmp_path / "overlay", packages=packages_in(site))
    assert any("prebuilt" in warning for warning in verify(overlay, site).warnings)


def test_an_interpreter_that_fails_is_an_error_of_its_own(overlay: Overlay) -> None:
    with pytest.raises(UserError, match="could not be verified"):
        verify_overlay("/bin/false", overlay)
