"""The main job on a real SGLang on this CPU, through Ray, into MLflow and the report: `+experiment=cpu_flags`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.engines import process

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ENGINE_PYTHON") or str(ROOT / ".venv-engine/bin/python")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """One run of the whole experiment: its folder, its decision, what it printed."""
    root = tmp_path_factory.mktemp("cpu_flags")
    command = [sys.executable, "-m", "runner", "+experiment=cpu_flags", f"engine.python={PYTHON}", f"tracking.root={root}/mlruns"]
    command += [f"execution.lock_dir={root}/lock", f"engine.cache_root={root}/caches", "study.name=cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = root / "mlruns/studies/cpu"
    return folder, json.loads((folder / "decision.json").read_text()), done.stdout + done.stderr


def arm(decision: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [item for item in decision["arms"] if item["name"] == name]
    return dict(found)


def cell(decision: dict[str, Any], factor: str) -> dict[str, Any]:
    (found,) = [item for item in decision["cells"] if item["levels"].get(factor) == "on"]
    return dict(found)


def launches(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line["launch"] for line in lines if line["kind"] == "launch_finished"]


def test_a_limit_of_two_running_requests_is_worse_on_ttft(study: tuple[Path, dict[str, Any], str]) -> None:
    _, decision, _ = study
    found = arm(decision, "max_running_requests=2")
    assert (found["status"], found["verdict"]) == ("MEASURED", "WORSE")
    (hypothesis,) = found["hypotheses"]
    assert (hypothesis["phase"], hypothesis["metric"], hypothesis["verdict"]) == ("decode_c8", "ttft_p50_ms", "WORSE")
    assert hypothesis["high_pct"] < 0 and hypothesis["launches"] >= 3


def test_mscclpp_serves_and_is_inert_after_one_launch(study: tuple[Path, dict[str, Any], str]) -> None:
    folder, decision, _ = study
    found = arm(decision, "mscclpp=on")
    assert found["status"] == "INERT" and found["same_as"] == decision["baseline"]
    assert [item["grade"] for item in found["evidence"] if item["factor"] == "mscclpp"] == ["contradicted"]
    assert len([record for record in launches(folder) if record["arm"] == "mscclpp=on"]) == 1


def test_two_batch_overlap_is_refused_in_sglangs_words_before_any_load(study: tuple[Path, dict[str, Any], str]) -> None:
    folder, decision, _ = study
    found = cell(decision, "two_batch_overlap")
    assert (found["status"], found["refused_at"]) == ("REJECTED", "resolve")
    assert "When enabling two batch overlap" in found["reason"] + found["sentence"]
    assert not any("two_batch_overlap" in record["arm"] for record in launches(folder))


def test_an_unknown_option_is_refused_with_the_last_line_only(study: tuple[Path, dict[str, Any], str]) -> None:
    _, decision, _ = study
    found = cell(decision, "no_such_option")
    assert (found["status"], found["refused_at"]) == ("REJECTED", "resolve")
    text = found["reason"] + found["sentence"]
    assert "unrecognized arguments: --no-such-option" in text and "usage:" not in text and len(text) < 500


def test_everything_lands_in_mlflow_and_in_the_report(study: tuple[Path, dict[str, Any], str]) -> None:
    folder, decision, printed = study
    report = (folder / "report.html").read_text()
    for name in (item["name"] for item in decision["arms"]):
        assert name in report
    assert "SIMULATED" not in report and "SIMULATED" not in printed and decision["engine"]["simulated"] is False
    code = (
        "import mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]); "
        "runs = mlflow.search_runs(search_all_experiments=True, filter_string=\"tags.kind = 'arm'\", output_format='list'); "
        "print(sorted(run.info.run_name for run in runs))"
    )
    uri = f"sqlite:///{folder.parents[1]}/mlflow.db"
    names = subprocess.run([sys.executable, "-c", code, uri], capture_output=True, text=True, check=True).stdout
    for item in decision["arms"]:
        assert item["name"] in names


def test_the_recommended_or_baseline_command_can_be_repeated_by_hand(study: tuple[Path, dict[str, Any], str]) -> None:
    folder, decision, _ = study
    record = next(record for record in launches(folder) if record["arm"] == decision["baseline"])
    argv = record["command"]["argv"]
    assert argv[0] == PYTHON and argv[1:3] == ["-m", "sglang.launch_server"]
    assert "--max-running-requests" in argv and argv[argv.index("--max-running-requests") + 1] == "64"


def test_no_server_is_left(study: tuple[Path, dict[str, Any], str]) -> None:
    folder, _, _ = study
    left = [
        pid
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        if "sglang" in process.command_line(pid) and str(folder.parents[1]) in process.command_line(pid)
    ]
    assert left == []
