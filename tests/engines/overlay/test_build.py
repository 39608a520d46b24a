"""The overlay on disk: links, own copies, nothing written to the installed packages."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from runner.engines.audit import audit, packages_in
from runner.engines.overlay import Hunk, Overlay, PatchPart, PatchSet, build_overlay, load_overlay, load_patch_set, patch_folders
from runner.errors import UserError
from tests.engines.source_trees import VERSIONS, small_package, source_tree

REPO = Path(__file__).parent.parent.parent.parent
FILES = {
    "sglang/__init__.py": "",
    "sglang/srt/gate.py": "ON = False\n",
    "sglang/srt/gate_too.py": "from pathlib import Path\nHERE = Path(__file__).resolve()\n",
    "sglang/srt/deep/plain.py": "X = 1\n",
    "sglang/data/a.json": "{}",
    "sglang/data/b/c.json": "{}",
}


def on() -> PatchSet:
    return PatchSet(name="on", parts=(PatchPart(hunks=(Hunk(file="srt/gate.py", find="ON = False", replace="ON = True"),)),), digest="")


def built(tmp_path: Path, files: dict[str, str] | None = None, patch: PatchSet | None = None) -> tuple[Path, Overlay]:
    site = small_package(tmp_path / "site", files or FILES)
    return site, build_overlay(sys.executable, [patch or on()], tmp_path / "overlay", packages=packages_in(site))


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


def imported(overlay: Overlay, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": overlay.path}, capture_output=True, text=True, check=True, cwd=overlay.target
    )
    return done.stdout.strip()


def test_changed_files_are_own_copies_and_the_rest_are_links(tmp_path: Path) -> None:
    site, overlay = built(tmp_path)
    place = Path(overlay.path) / "sglang"
    assert (place / "srt/gate.py").read_text() == "ON = True\n"
    assert not (place / "srt/gate.py").is_symlink()
    assert (place / "srt/deep/plain.py").readlink() == site / "sglang/srt/deep/plain.py"
    assert not (place / "srt/deep").is_symlink(), "a folder with Python is real, so that bytecode stays in the overlay"
    assert (place / "data").is_symlink()


def test_the_installed_package_is_never_written_to_even_when_used(tmp_path: Path) -> None:
    site = small_package(tmp_path / "site", FILES)
    before = tree(site)
    overlay = build_overlay(sys.executable, [on()], tmp_path / "overlay", packages=packages_in(site))
    assert imported(overlay, "import sglang.srt.gate as g, sglang.srt.deep.plain as p; print(g.ON, p.__file__)").startswith("True ")
    assert tree(site) == before
    assert list((Path(overlay.path) / "sglang/srt/deep/__pycache__").glob("plain*.pyc"))


def test_a_file_that_asks_for_its_own_place_stays_in_the_overlay(tmp_path: Path) -> None:
    _, overlay = built(tmp_path)
    assert Path(imported(overlay, "import sglang.srt.gate_too as g; print(g.HERE)")).is_relative_to(overlay.path)


def test_bytecode_of_a_changed_file_is_not_taken_over(tmp_path: Path) -> None:
    site = small_package(tmp_path / "site", FILES)
    # Unchecked bytecode would be believed without a look at the source.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(site)], check=True)
    overlay = build_overlay(sys.executable, [on()], tmp_path / "overlay", packages=packages_in(site))
    assert imported(overlay, "import sglang.srt.gate as g; print(g.ON)") == "True"


def test_a_change_below_a_data_folder_makes_just_that_path_real(tmp_path: Path) -> None:
    patch = PatchSet(name="d", parts=(PatchPart(hunks=(Hunk(file="data/b/c.json", find="{}", replace='{"x": 1}'),)),), digest="")
    site, overlay = built(tmp_path, patch=patch)
    place = Path(overlay.path) / "sglang/data"
    assert (place / "b/c.json").read_text() == '{"x": 1}'
    assert (place / "a.json").is_symlink()
    assert (site / "sglang/data/b/c.json").read_text() == "{}"


def test_libraries_beside_the_package_come_along(tmp_path: Path) -> None:
    _, overlay = built(tmp_path, {**FILES, "sglang.libs/libx.so": "binary"})
    assert (Path(overlay.path) / "sglang.libs/libx.so").read_text() == "binary"


def test_hash_and_diff_are_recorded_and_name_the_change(tmp_path: Path) -> None:
    _, overlay = built(tmp_path)
    assert "-ON = False\n+ON = True" in overlay.diff
    assert "installed/sglang/srt/gate.py" in overlay.diff
    assert load_overlay(Path(overlay.target)) == overlay
    assert overlay.files[0].before == hashlib.sha256(b"ON = False\n").hexdigest()
    other = PatchSet(name="on", parts=(PatchPart(hunks=(Hunk(file="srt/gate.py", find="ON = False", replace="ON = 1"),)),), digest="")
    assert build_overlay(sys.executable, [other], tmp_path / "other", packages=packages_in(tmp_path / "site")).digest != overlay.digest
    assert build_overlay(sys.executable, [on()], tmp_path / "third", packages=packages_in(tmp_path / "site")).digest == overlay.digest


def test_the_same_overlay_is_reused_and_a_damaged_or_other_one_rebuilt(tmp_path: Path) -> None:
    site, overlay = built(tmp_path)
    gate = Path(overlay.path) / "sglang/srt/gate.py"
    stamp = gate.stat().st_mtime_ns
    build_overlay(sys.executable, [on()], tmp_path / "overlay", packages=packages_in(site))
    assert gate.stat().st_mtime_ns == stamp
    gate.write_text("ON = 3\n")
    build_overlay(sys.executable, [on()], tmp_path / "overlay", packages=packages_in(site))
    assert gate.read_text() == "ON = True\n"


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    site = small_package(tmp_path / "site", FILES)
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="something else"):
        build_overlay(sys.executable, [on()], tmp_path / "overlay", packages=packages_in(site))
    assert (tmp_path / "overlay" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("version", VERSIONS)
def test_after_the_shipped_patch_the_audit_finds_no_closed_fusion_gate_on_sm120(version: str, tmp_path: Path) -> None:
    site = source_tree(version, tmp_path / "site")
    before = audit(site, 120, 8, link="pcie", flags=["allreduce_fusion"])
    overlay = build_overlay(
        sys.executable, [load_patch_set("sm120_fusion", patch_folders(REPO))], tmp_path / "overlay", packages=packages_in(site)
    )
    places = {**packages_in(site), **packages_in(Path(overlay.path))}
    after = audit(overlay.path, 120, 8, link="pcie", flags=["allreduce_fusion"], packages=places)
    closed = {"raises", "closed"}
    assert {gate.gives for gate in before if gate.own} & closed
    assert not [gate for gate in after if gate.own and gate.gives in closed]
    gate = next(gate for gate in after if gate.kind == "decides" and "_is_sm120_supported" in gate.condition)
    assert gate.values["_is_sm120_supported"] == "True"
    # The patch opens the gate for SM120 and for nothing else.
    ada = audit(overlay.path, 89, 8, link="pcie", flags=["allreduce_fusion"], packages=places)
    assert {gate.gives for gate in ada if gate.own} & closed
