"""The command line, as the documents show it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.examples import ROOT

Planned = Callable[..., dict[str, Any]]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """`planned(folder, "+experiment=NAME", ...)` -> what `action=plan json=true` prints with that folder as --config-dir."""

    def ask(folder: Path, *words: str) -> dict[str, Any]:
        own = ["action=plan", "json=true", "engine=simulated", f"tracking.root={tmp_path / 'mlruns'}"]
        command = [sys.executable, "-m", "runner", "--config-dir", str(folder), *words, *own]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return ask
