"""File names from user text stay where they belong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.records.files import read_json, write_json
from runner.records.paths import RootPaths, safe_name


@given(st.text(max_size=300))
def test_no_text_leaves_its_folder(text: str) -> None:
    name = safe_name(text)
    assert name and "/" not in name and not name.startswith(".") and len(name) <= 120


@pytest.mark.parametrize("text", ["../../etc/passwd", "/abs", "..", ".", "", "a/../../b", "\x00", "~root"])
def test_hostile_study_names_stay_inside(text: str, tmp_path: Path) -> None:
    folder = RootPaths(tmp_path).study(text).folder.resolve()
    assert folder.parent == (tmp_path / "studies").resolve()


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json(path, {"a": float("inf")})
    assert read_json(path) == {"a": 1}
    assert [item.name for item in path.parent.iterdir()] == ["file.json"]
