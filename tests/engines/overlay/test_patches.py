"""Patch sets: which hunks are for which version, and the refusal when one does not fit."""

from pathlib import Path

import pytest

from runner.engines.audit import packages_in
from runner.engines.overlay import Hunk, PatchFailed, PatchPart, PatchSet, load_patch_set, patch_folders, patched_texts, patches_for
from runner.errors import UserError
from tests.engines.source_trees import VERSIONS, source_tree

REPO = Path(__file__).parent.parent.parent.parent


def shipped() -> PatchSet:
    return load_patch_set("sm120_fusion", patch_folders(REPO))


def one(find: str, replace: str, file: str = "srt/layers/communicator.py", **more: str) -> PatchSet:
    return PatchSet(name="mine", parts=(PatchPart(hunks=(Hunk(file=file, find=find, replace=replace, **more),)),), digest="")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_set_fits_real_text_exactly_once_and_compiles(version: str, tmp_path: Path) -> None:
    packages = packages_in(source_tree(version, tmp_path))
    texts, counts = patched_texts([shipped()], packages)
    gate = next(text for (_, file), text in texts.items() if file.endswith(("communicator.py", "add_norm.py")))
    assert "or _is_sm120_supported)" in gate
    assert sum(counts.values()) >= 4
    assert (("flashinfer", "jit/comm.py") in texts) is (version != "0.5.23")


@pytest.mark.parametrize(
    "version", ["0.5.9", "0.5.10.post1", "0.5.11", "0.5.13.post1", "0.5.14", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.23"]
)
def test_every_version_has_exactly_one_range(version: str) -> None:
    parts = []
    for part in shipped().parts:
        try:
            patches_for(PatchSet(name="x", parts=(part,), digest=""), {"sglang": version, "flashinfer": "0.6.8.post1"})
        except PatchFailed:
            continue
        parts.append(part.source)
    assert len(parts) == 1


@pytest.mark.parametrize("version", ["0.5.8.post1", "0.5.24", None])
def test_a_version_without_a_range_is_refused_with_the_ranges(version: str | None) -> None:
    with pytest.raises(PatchFailed, match=r"no hunks for sglang .*it covers: .*>=0\.5\.9,<0\.5\.11"):
        patches_for(shipped(), {"sglang": version, "flashinfer": "0.6.12"})


def test_flashinfer_hunks_follow_flashinfers_version() -> None:
    def files(sglang: str, flashinfer: str) -> set[str]:
        return {hunk.file for hunk in patches_for(shipped(), {"sglang": sglang, "flashinfer": flashinfer}) if hunk.package == "flashinfer"}

    assert files("0.5.9", "0.6.3") == {"jit/comm.py"}
    assert files("0.5.10", "0.6.7.post2") == {"jit/comm.py", "comm/mnnvl.py"}
    assert files("0.5.15.post1", "0.6.12") == {"jit/comm.py"}
    assert files("0.5.15.post1", "0.6.17") == set()


def test_a_missing_package_is_refused() -> None:
    with pytest.raises(PatchFailed, match="flashinfer is not installed"):
        patches_for(shipped(), {"sglang": "0.5.9"})


@pytest.mark.parametrize(("find", "count"), [("nowhere in this file", 0), ("batch_size ", 2)])
def test_text_that_does_not_occur_exactly_once_is_refused_with_file_and_text(find: str, count: int, tmp_path: Path) -> None:
    packages = packages_in(source_tree("0.5.15.post1", tmp_path))
    with pytest.raises(PatchFailed) as caught:
        patched_texts([one(find, "x")], packages)
    assert caught.value.found == count
    assert "sglang/srt/layers/communicator.py" in str(caught.value)
    assert find in str(caught.value)
    assert caught.value.sought == find


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    packages = packages_in(source_tree("0.5.15.post1", tmp_path))
    with pytest.raises(PatchFailed, match="there is no such file"):
        patched_texts([one("x", "y", file="srt/gone.py")], packages)


def test_a_patched_file_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    packages = packages_in(source_tree("0.5.15.post1", tmp_path))
    with pytest.raises(PatchFailed, match="does not compile"):
        patched_texts([one("def apply_flashinfer_allreduce_fusion", "def def")], packages)


def test_two_sets_change_one_file_one_after_the_other(tmp_path: Path) -> None:
    packages = packages_in(source_tree("0.5.15.post1", tmp_path))
    first, second = one("batch_size > 0", "batch_size > 1"), one("batch_size > 1", "batch_size > 2")
    texts, counts = patched_texts([first, second], packages)
    assert "batch_size > 2" in texts["sglang", "srt/layers/communicator.py"]
    assert counts["sglang", "srt/layers/communicator.py"] == 2


def test_a_users_own_file_or_folder_works_the_same_way(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('engine: ">=0.5"\nhunks:\n  - file: srt/a.py\n    find: |2\n        indented\n    replace: new\n')
    by_file = load_patch_set(file)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.json").write_text('{"hunks": [{"file": "srt/a.py", "find": "x", "replace": "y"}]}')
    assert by_file.parts[0].hunks[0].find == "  indented\n"
    assert load_patch_set(folder).parts[0].hunks[0].find == "x"
    assert load_patch_set("mine", [tmp_path]) == by_file
    assert load_patch_set("folder", [tmp_path]).name == "folder"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hunks: []", "hunks"),
        ("hunks: [{file: a.py, find: x}]", "replace"),
        ("hunks: [{file: ../a.py, find: x, replace: y}]", "leaves the package"),
        ("hunks: [{file: a.py, find: x, replace: y, versions: newest}]", "no version range"),
        ("engine: many\nhunks: [{file: a.py, find: x, replace: y}]", "no version range"),
        ("hunk: [{file: a.py, find: x, replace: y}]", "hunk"),
        ("- a", "a mapping"),
        ("a: [", "not readable"),
    ],
)
def test_a_bad_patch_file_says_where_and_what(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_patch_set("bad", [tmp_path])
    assert "bad.yaml" in str(caught.value)


def test_an_unknown_name_tells_the_choices() -> None:
    with pytest.raises(UserError, match="sm120_fusion"):
        load_patch_set("sm120_fussion", patch_folders(REPO))
