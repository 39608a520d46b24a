"""Several studies by Hydra's `-m`: nothing is written outside the results root."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_multirun_leaves_its_file_in_the_results_root_alone(tmp_path: Path) -> None:
    work, results = tmp_path / "work", tmp_path / "results"
    work.mkdir()
    words = ["-m", "action=schedule", "schedule.form=cron", "at=02:00,03:00", f"tracking.root={results}"]
    done = subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "0 2 * * *" in done.stdout and "0 3 * * *" in done.stdout
    assert list(work.iterdir()) == []
    assert [path.relative_to(results).as_posix() for path in results.rglob("*") if path.is_file()] == ["multirun/multirun.yaml"]
