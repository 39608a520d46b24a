"""Room on disk: learned from the studies that are there, an allowance where there are none, refused before the first launch."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.errors import UserError
from runner.execution import disk
from runner.records.files import write_json


def study(root: Path, name: str, sizes: list[int], simulated: bool = True) -> None:
    write_json(root / name / "plan.json", {"simulated": simulated})
    for number, size in enumerate(sizes):
        folder = root / name / "launches" / f"l{number}"
        write_json(folder / "launch.json", {})
        (folder / "server.log").write_bytes(b"x" * (size - (folder / "launch.json").stat().st_size))


def test_without_studies_it_is_an_allowance_and_says_so(tmp_path: Path) -> None:
    need = disk.need_of(tmp_path / "nowhere", 10, simulated=True)
    assert need.launch == disk.LAUNCH_BYTES and "an allowance" in str(need)


def test_it_learns_from_studies_of_its_kind(tmp_path: Path) -> None:
    study(tmp_path, "small", [1000, 1000, 1000])
    study(tmp_path, "large", [4000, 5000, 6000])
    study(tmp_path, "real", [900_000] * 3, simulated=False)
    study(tmp_path, "too-short", [800_000] * 2)
    need = disk.need_of(tmp_path, 10, simulated=True)
    assert need.launch == 7500
    assert need.total == disk.RESERVE_BYTES + disk.DEBUG_LOG_BYTES + 75_000
    assert "the last 2 studies" in str(need)
    assert disk.need_of(tmp_path, 10, simulated=False).launch == 1_350_000


def test_too_little_room_is_refused_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100_000_000))
    with pytest.raises(UserError, match=r"about 321 MB .* for 14 launches, 100 MB are free"):
        disk.demand_room(tmp_path / "not" / "yet", 14, simulated=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(400_000_000))
    assert disk.demand_room(tmp_path / "not" / "yet", 14, simulated=True).total < 400_000_000
