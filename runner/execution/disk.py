"""Room on disk: what a study will write, and whether it fits, before the first launch."""

import shutil
from pathlib import Path

from runner.errors import UserError

LAUNCH_BYTES = 3 * 1024 * 1024
"""Allowance for one launch: its records, requests, telemetry and compressed log. On the generous side, not a measurement."""
DEBUG_LOG_BYTES = 64 * 1024 * 1024
"""A debug log before it is compressed (see logs.CAP_BYTES): one at a time."""
RESERVE_BYTES = 200 * 1024 * 1024
"""Report, plots, MLflow's copy, and what others write meanwhile."""


def need_bytes(launches: int) -> int:
    """What a study of `launches` launches may write, bytes."""
    return RESERVE_BYTES + DEBUG_LOG_BYTES + launches * LAUNCH_BYTES


def demand_room(folder: Path, launches: int) -> None:
    """Raises UserError naming need and free space when the file system of `folder` (or of its nearest parent) has too little."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    need, free = need_bytes(launches), shutil.disk_usage(place).free
    if free < need:
        raise UserError(
            f"the study needs about {need / 1e6:.0f} MB under {folder} ({launches} launches), {free / 1e6:.0f} MB are free; "
            f"make room or give another folder with tracking.root=PATH"
        )
