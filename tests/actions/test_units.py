"""The schedule's texts mean what they say: the shell line is run for real, the calendar with a fake clock."""

import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from runner.actions.schedule import config_directory
from runner.actions.units import Night, crontab_line, next_runs, night_script, ray_job_line, shell_command, systemd_units
from runner.errors import UserError


def night(tmp_path: Path, *argv: str, at: str = "02:30", limit: int = 1) -> Night:
    lock, log, told = (str(tmp_path / name) for name in ("night lock", "night.log", "night told"))
    return Night(argv or ("true",), str(tmp_path), at, limit, lock, log, told, mail_command=f"cp /dev/null '{tmp_path / 'alert'}'")


def test_the_printed_line_runs_in_its_folder_and_logs(tmp_path: Path) -> None:
    line = shell_command(night(tmp_path, sys.executable, "-c", "import os; print(os.getcwd(), 'a b', '%d')"))
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == 0
    assert (tmp_path / "night.log").read_text() == f"{tmp_path} a b %d\n"


def test_a_second_night_beside_a_running_one_ends_with_75(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"import pathlib, sys; pathlib.Path({str(ready)!r}).write_text('x'); sys.stdin.read()"
    first = subprocess.Popen(["/bin/sh", "-c", shell_command(night(tmp_path, sys.executable, "-c", code))], stdin=subprocess.PIPE)
    try:
        for _ in range(500):
            if ready.exists():
                break
            subprocess.run([sys.executable, "-c", "import time; time.sleep(0.01)"], check=True)
        second = subprocess.run(["/bin/sh", "-c", shell_command(night(tmp_path, "true"))], check=False)
        assert second.returncode == 75
    finally:
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait(10) == 0


def test_the_exit_code_of_the_sweep_comes_through(tmp_path: Path) -> None:
    line = shell_command(night(tmp_path, sys.executable, "-c", "raise SystemExit(3)"))
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == 3


def test_the_first_night_makes_the_folder_of_its_lock_and_log(tmp_path: Path) -> None:
    root = tmp_path / "no such yet"
    first = Night(("echo", "ran"), str(tmp_path), "02:30", 1, str(root / "night.lock"), str(root / "night.log"), str(root / "told"))
    assert subprocess.run(["/bin/sh", "-c", shell_command(first)], check=False).returncode == 0
    assert (root / "night.log").read_text() == "ran\n"


@pytest.mark.parametrize(
    ("code", "told", "alert"), [(0, False, False), (3, True, False), (3, False, True), (2, False, True), (75, True, False)]
)
def test_one_event_has_one_message(tmp_path: Path, code: int, told: bool, alert: bool) -> None:
    """A night that sent its own message leaves the mark; what ended without a word is told by the shell."""
    made = night(tmp_path)
    (tmp_path / "night told").write_text("of yesterday")
    own = ["touch", made.told] if told else ["true"]
    body = f"import subprocess; subprocess.run({own}); raise SystemExit({code})"
    line = shell_command(replace(made, argv=(sys.executable, "-c", body)))
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == code
    assert (tmp_path / "alert").exists() is alert


def test_the_failure_unit_keeps_quiet_when_the_night_told(tmp_path: Path) -> None:
    units = systemd_units(night(tmp_path))
    told = f'"{tmp_path}/night told"'
    assert f"ExecStartPre=/bin/rm -f {told}\n" in units["engine-flag-nightly.service"]
    assert f"ExecCondition=/usr/bin/test ! -e {told}\n" in units["engine-flag-nightly-failed.service"]


def test_cron_escapes_percent_and_keeps_the_time(tmp_path: Path) -> None:
    line = crontab_line(night(tmp_path / "100%", "echo"))
    assert line.startswith("30 2 * * * /bin/sh ") and r"100\%" in line and "\n" not in line


def test_the_line_of_cron_stays_short_however_long_the_night(tmp_path: Path) -> None:
    made = night(tmp_path, "echo", *["a long override"] * 200)
    assert len(crontab_line(made)) < 500, "cron refuses commands of more than 998 characters"
    Path(made.script).write_text(night_script(made))
    assert subprocess.run(["/bin/sh", made.script], check=False).returncode == 0
    assert len((tmp_path / "night.log").read_text()) == 200 * len("a long override ")


@pytest.mark.parametrize("at", ["25:00", "2", "02:60", "noon", "02:00:00", ""])
def test_a_wrong_time_is_refused(tmp_path: Path, at: str) -> None:
    with pytest.raises(UserError, match="HH:MM"):
        crontab_line(night(tmp_path, at=at))


@pytest.mark.parametrize(
    ("now", "first"),
    [
        (datetime(2026, 3, 1, 2, 29), datetime(2026, 3, 1, 2, 30)),
        (datetime(2026, 3, 1, 2, 30), datetime(2026, 3, 2, 2, 30)),
        (datetime(2026, 12, 31, 23, 0), datetime(2027, 1, 1, 2, 30)),
        (datetime(2028, 2, 28, 3, 0), datetime(2028, 2, 29, 2, 30)),
    ],
)
def test_the_calendar(tmp_path: Path, now: datetime, first: datetime) -> None:
    assert next_runs(night(tmp_path), now, 2)[0] == first


@pytest.mark.parametrize("now", ["2026-03-01 02:29:59", "2026-12-31 23:00:00", "2028-02-28 03:00:00"])
def test_systemd_reads_the_timer_as_the_calendar_does(tmp_path: Path, now: str) -> None:
    """systemd-analyze tells the next starts with a clock of our own."""
    made = night(tmp_path)
    (when,) = re.findall(r"OnCalendar=(.*)", systemd_units(made)["engine-flag-nightly.timer"])
    told = subprocess.run(
        ["systemd-analyze", "calendar", f"--base-time={now}", "--iterations=3", when],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C"},
    )
    starts = re.findall(r"(?:Next elapse|Iter\. #\d+|Iteration #\d+): \w+ (\S+ \S+) UTC", told.stdout)
    assert starts == [str(run) for run in next_runs(made, datetime.fromisoformat(now), 3)]


def test_units_are_what_systemd_accepts(tmp_path: Path) -> None:
    units = systemd_units(night(tmp_path, sys.executable, "-m", "runner", "+experiment=nightly", 'a "b" 100% $x'))
    assert "OnCalendar=*-*-* 02:30:00" in units["engine-flag-nightly.timer"] and "Persistent=true" in units["engine-flag-nightly.timer"]
    service = units["engine-flag-nightly.service"]
    assert "OnFailure=engine-flag-nightly-failed.service" in service and "TimeoutStartSec=1min" in service
    assert '"a \\"b\\" 100%% $$x"' in service
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *[str(tmp_path / name) for name in units]], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "engine-flag" in line]
    assert not complaints, complaints


def test_a_ray_job_line_names_cluster_and_command(tmp_path: Path) -> None:
    line = ray_job_line(night(tmp_path, "python", "-m", "runner", "x=a b"), "http://127.0.0.1:8265")
    assert "ray job submit --address http://127.0.0.1:8265 --no-wait -- python -m runner 'x=a b'" in line


@pytest.mark.parametrize("words", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_the_night_finds_the_users_own_configuration(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_directory(["runner", "action=schedule", *words]) == ("--config-dir", str(tmp_path / "mine"))
    assert config_directory(["runner", "action=schedule"]) == ()
