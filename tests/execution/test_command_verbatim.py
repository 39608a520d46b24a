"""The command that the report prints: started word for word, by hand and without the runner, it gives the arm's configuration."""

import os
import subprocess
import time
from pathlib import Path

import requests

from runner.engines.evidence.resolved_view import resolved_view
from runner.execution.worker import NodeWorker
from runner.records.schema import Command, LaunchRecord
from tests.execution.launching import launch_job, node_order


def test_the_recorded_command_launched_verbatim_resolves_to_the_arm(tmp_path: Path) -> None:
    record = launched(tmp_path, {"max-running-requests": 3, "chunked-prefill-size": 1024})
    other = launched(tmp_path / "other", {"max-running-requests": 4, "chunked-prefill-size": 1024})
    assert record.resolved
    assert by_hand(record.command, tmp_path) == record.resolved
    assert record.resolved != other.resolved, "another arm resolves to something else"


def launched(folder: Path, options: dict[str, int]) -> LaunchRecord:
    job = launch_job(folder)
    job = job.model_copy(update={"order": job.order.model_copy(update={"options": options})})
    worker = NodeWorker(node_order(folder / "lock"))
    try:
        record = list(worker.launch(job))[-1].record
    finally:
        worker.close()
    assert record is not None
    assert record.outcome == "ok"
    return record


def by_hand(command: Command, folder: Path) -> dict[str, object]:
    """Starts argv with its environment, asks the server what it made of it, and ends it."""
    argv = list(command.argv)
    url = f"http://127.0.0.1:{argv[argv.index('--port') + 1]}"
    with (folder / "by-hand.log").open("wb") as log:
        server = subprocess.Popen(argv, env=os.environ | command.env, cwd=command.cwd, stdout=log, stderr=log)
    try:
        for _ in range(300):
            assert server.poll() is None, (folder / "by-hand.log").read_text()
            try:
                if requests.get(f"{url}/health", timeout=2).status_code == 200:
                    break
            except requests.RequestException:
                time.sleep(0.1)
        answer = requests.get(f"{url}/get_server_info", timeout=5)
        return dict(resolved_view(answer.json()))
    finally:
        server.terminate()
        server.wait(timeout=20)
