"""Webhook and mail: what is sent, when, and that no address is ever shown."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runner.actions.notify import fill_text, notify, told_file
from runner.actions.units import Night, systemd_units
from runner.records.night import NightReport
from runner.records.paths import RootPaths
from runner.spec.study import ScheduleSpec

REGRESSION = NightReport(
    study="nightly-1",
    node="eight",
    simulated=False,
    at=1.0,
    outcome="regression",
    sentence='regression: fast "c1" is {slower}',
    suspects=("fast",),
)
QUIET = REGRESSION.model_copy(update={"outcome": "quiet", "sentence": "quiet"})


class Receiver(HTTPServer):
    bodies: list[Any]
    status: int


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server: Receiver = self.server  # type: ignore[assignment]
            server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = Receiver(("127.0.0.1", 0), Handler)
    server.bodies, server.status = [], 200
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("SWEEP_WEBHOOK", f"http://127.0.0.1:{receiver.server_port}/s3cret-path")
    return "SWEEP_WEBHOOK"


def test_the_summary_is_posted(receiver: Receiver, address: str) -> None:
    assert notify(REGRESSION, ScheduleSpec(webhook=address)) == ["webhook (SWEEP_WEBHOOK): sent"]
    body = receiver.bodies[0]
    assert body["text"].startswith("REGRESSION: nightly-1 on eight\nregression: fast")
    assert body["outcome"] == "regression" and body["suspects"] == ["fast"] and body["summary"].startswith("# Nightly sweep")


def test_a_template_is_filled_in_and_stays_json(receiver: Receiver, address: str) -> None:
    template = {"blocks": [{"type": "text", "text": "{subject}: {sentence}"}], "count": 3, "unknown": "{what}"}
    notify(REGRESSION, ScheduleSpec(webhook=address, webhook_body=template))
    text = 'REGRESSION: nightly-1 on eight: regression: fast "c1" is {slower}'
    assert receiver.bodies == [{"blocks": [{"type": "text", "text": text}], "count": 3, "unknown": "{what}"}]


def test_a_field_is_never_read_as_a_template() -> None:
    assert fill_text("{sentence}", {"sentence": "{node}", "node": "n"}) == "{node}"


@pytest.mark.parametrize(
    ("mode", "report", "sent"), [("alarms", QUIET, 0), ("alarms", REGRESSION, 1), ("always", QUIET, 1), ("never", REGRESSION, 0)]
)
def test_who_is_told_when(receiver: Receiver, address: str, mode: str, report: NightReport, sent: int) -> None:
    notify(report, ScheduleSpec(webhook=address, notify=mode))
    assert len(receiver.bodies) == sent


def test_what_goes_wrong_is_said_without_the_address(receiver: Receiver, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.status = 404
    assert notify(REGRESSION, ScheduleSpec(webhook=address)) == ["webhook (SWEEP_WEBHOOK): refused with status 404"]
    monkeypatch.setenv("SWEEP_WEBHOOK", "http://127.0.0.1:1/s3cret-path")
    lines = notify(REGRESSION, ScheduleSpec(webhook=address))
    assert "not sent" in lines[0] and "s3cret" not in lines[0] and "127" not in lines[0]
    monkeypatch.delenv("SWEEP_WEBHOOK")
    assert "SWEEP_WEBHOOK is not set" in notify(REGRESSION, ScheduleSpec(webhook=address))[0]


@pytest.mark.parametrize(
    ("command", "word"), [("/no/such/mailer", "FileNotFoundError"), ("false", "ended with 1"), ("", "empty"), ("'open", "ValueError")]
)
def test_a_mail_command_that_fails_is_said(command: str, word: str) -> None:
    assert word in notify(REGRESSION, ScheduleSpec(mail_command=command))[0]


@pytest.mark.parametrize(("command", "told"), [("cat", True), ("false", False)])
def test_a_message_that_went_out_leaves_its_mark_and_no_other(tmp_path: Path, command: str, told: bool) -> None:
    root = RootPaths(tmp_path)
    notify(REGRESSION, ScheduleSpec(mail_command=command), root)
    assert told_file(root).exists() is told, "what was not sent has to be told by somebody else"


def test_who_wants_no_message_gets_none_from_the_timer_either(tmp_path: Path) -> None:
    root = RootPaths(tmp_path)
    assert notify(REGRESSION, ScheduleSpec(mail_command="cat", notify="never"), root) == []
    assert told_file(root).exists()


def test_the_failure_unit_has_a_subject_of_its_own() -> None:
    night = Night(("python",), "/f", "02:00", 60, "/l", "/g", "/t", mail_command='/usr/bin/mail -s "{subject}" me@example.org')
    unit = systemd_units(night)["engine-flag-nightly-failed.service"]
    assert '"-s" "Nightly sweep ended without a word of its own" "me@example.org"' in unit and "{" not in unit
