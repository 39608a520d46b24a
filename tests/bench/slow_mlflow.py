"""As much of MLflow's REST interface as the tracker uses, in memory, with a pause before each answer. For tests and benchmarks."""

import contextlib
import http.server
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse


class SlowMlflow:
    """`calls`: requests received; `answered`: those that got their answer. `hold`: no answer before it is set (null: `delay_s`)."""

    def __init__(self, artifacts: Path, delay_s: float = 0.0, hold: threading.Event | None = None) -> None:
        self.artifacts, self.delay_s, self.hold = artifacts, delay_s, hold
        self.calls = self.answered = 0
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._mutex:
            self.calls += 1
        if self.hold is not None:
            self.hold.wait(300)
        time.sleep(self.delay_s)
        with self._mutex:
            self.answered += 1
            return self._answer(path.removeprefix("/api/2.0/mlflow/"), body)

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        missing = 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "not there"}
        if path == "experiments/get-by-name":
            found = next((each for each in self.experiments.values() if each["name"] == body["experiment_name"]), None)
            return (200, {"experiment": found}) if found else missing
        if path == "experiments/get":
            return 200, {"experiment": self.experiments[body["experiment_id"]]}
        if path == "experiments/create":
            number = str(next(self._numbers))
            place = f"{self.artifacts.as_uri()}/{number}"
            self.experiments[number] = {
                "experiment_id": number,
                "name": body["name"],
                "artifact_location": place,
                "lifecycle_stage": "active",
                "tags": [],
            }
            return 200, {"experiment_id": number}
        if path == "runs/create":
            number = f"{next(self._numbers):032x}"
            info = {
                "run_id": number,
                "run_uuid": number,
                "experiment_id": body["experiment_id"],
                "status": "RUNNING",
                "lifecycle_stage": "active",
                "artifact_uri": f"{self.artifacts.as_uri()}/{number}/artifacts",
            }
            self.runs[number] = {"info": info, "data": {"tags": body.get("tags", [])}}
            return 200, {"run": self.runs[number]}
        if path == "runs/get":
            return 200, {"run": self.runs[body["run_id"]]}
        if path == "runs/update":
            info = self.runs[body["run_id"]]["info"]
            info["status"] = body.get("status", info["status"])
            return 200, {"run_info": info}
        if path == "runs/search":
            return 200, {"runs": list(self.runs.values())}
        return 200, {}


@contextlib.contextmanager
def serving(fake: SlowMlflow) -> Iterator[str]:
    """The address of the server while it lives."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            parts = urlparse(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            body = json.loads(text) if text else {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, content = fake.answer(parts.path, body)
            data = json.dumps(content).encode()
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = _reply

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            if fake.hold is not None:
                fake.hold.set()
            server.shutdown()
