"""Room on disk: what a study will write, and whether it fits, before the first launch."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UserError
from runner.records.files import read_json
from runner.records.paths import StudyPaths

LAUNCH_BYTES = 3 * 1024 * 1024
"""Allowance for one launch where none is known: its records, requests, telemetry and compressed log. Generous, not a measurement."""
DEBUG_LOG_BYTES = 64 * 1024 * 1024
"""A debug log before it is compressed (see logs.CAP_BYTES): one at a time."""
RESERVE_BYTES = 200 * 1024 * 1024
"""Report, plots, MLflow's copy, and what others write meanwhile."""
NEWEST = 5
FEWEST_LAUNCHES = 3
SAFETY = 1.5


@dataclass(frozen=True)
class Need:
    """Bytes that a study may write, and where the size of a launch comes from."""

    total: int
    launch: int
    source: str

    def __str__(self) -> str:
        return f"about {self.total / 1e6:.0f} MB ({self.launch / 1e6:.1f} MB a launch: {self.source})"


def need_of(studies: Path, launches: int, simulated: bool) -> Need:
    """What a study of `launches` launches may write below `studies`: by the launches of the newest studies there, of the same kind
    (simulated or real), else by an allowance."""
    known = [size for paths in _newest(studies, simulated) if (size := mean_launch_bytes(paths)) is not None]
    launch = int(SAFETY * max(known)) if known else LAUNCH_BYTES
    source = (
        f"{SAFETY:g} times the largest mean of the last {len(known)} studies" if known else "an allowance, no study is there to learn from"
    )
    return Need(RESERVE_BYTES + DEBUG_LOG_BYTES + launches * launch, launch, source)


def mean_launch_bytes(paths: StudyPaths) -> float | None:
    """Bytes in the folder of a finished launch, on average; None for fewer than `FEWEST_LAUNCHES`."""
    folders = [folder for folder in paths.launches.glob("*") if (folder / "launch.json").is_file()]
    if len(folders) < FEWEST_LAUNCHES:
        return None
    return sum(_size(folder) for folder in folders) / len(folders)


def _size(folder: Path) -> int:
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(here) / name).lstat().st_size
            except OSError:
                continue
    return total


def _newest(studies: Path, simulated: bool) -> list[StudyPaths]:
    found = [StudyPaths(folder) for folder in studies.glob("*") if (folder / "plan.json").is_file()]
    found.sort(key=lambda paths: paths.plan.stat().st_mtime, reverse=True)
    same: list[StudyPaths] = []
    for paths in found[: 4 * NEWEST]:
        try:
            if bool(read_json(paths.plan).get("simulated")) == simulated:
                same.append(paths)
        except (OSError, ValueError, AttributeError):
            continue
    return same[:NEWEST]


def demand_room(studies: Path, launches: int, simulated: bool) -> Need:
    """Raises UserError naming need and free space when the file system of `studies` (or of its nearest parent) has too little."""
    place = next(parent for parent in (studies, *studies.parents) if parent.exists())
    need, free = need_of(studies, launches, simulated), shutil.disk_usage(place).free
    if free < need.total:
        raise UserError(
            f"the study needs {need} under {studies} for {launches} launches, {free / 1e6:.0f} MB are free; "
            f"make room or give another folder with tracking.root=PATH"
        )
    return need
