"""`action=schedule at=02:00 [install=true]`: prints the nightly schedule and, when asked, installs it."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from runner.actions.notify import told_file
from runner.actions.units import UNIT, Night, crontab_line, next_runs, night_script, ray_job_line, systemd_units
from runner.config import Settings, config_folder
from runner.errors import UserError
from runner.records.files import write_text
from runner.records.paths import RootPaths

MARK = f"# {UNIT}"


def perform(settings: Settings, overrides: list[str]) -> int:
    night = night_of(settings, overrides)
    form = settings.schedule.form if settings.schedule.form != "auto" else ("systemd" if has_user_systemd() else "cron")
    night.clock  # noqa: B018  refuses a wrong time before anything is printed
    print(f"# next nights: {', '.join(str(run) for run in next_runs(night, datetime.now(), 3))}")
    if form == "systemd":
        units = systemd_units(night)
        for name, text in units.items():
            print(f"# ~/.config/systemd/user/{name}\n{text}")
        if settings.install:
            install_systemd(units)
        else:
            print("# install=true writes these files and starts the timer")
    elif form == "cron":
        print(f"# {night.script}\n{night_script(night)}\n# crontab\n{crontab_line(night)}")
        if settings.install:
            Path(night.script).parent.mkdir(parents=True, exist_ok=True)
            write_text(Path(night.script), night_script(night))
            install_cron(crontab_line(night))
        else:
            print("# install=true writes the file and adds the line to the crontab")
    elif form == "ray":
        if settings.execution.ray.address is None:
            raise UserError("schedule.form=ray needs execution.ray.address=HOST:PORT of the cluster's dashboard")
        print(ray_job_line(night, f"http://{settings.execution.ray.address}"))
        if settings.install:
            raise UserError("a Ray cluster has no calendar; put the printed line into a crontab (schedule.form=cron) or a timer")
    else:
        raise UserError(f"schedule.form={form!r}: choices: auto, systemd, cron, ray")
    return 0


def night_of(settings: Settings, overrides: list[str]) -> Night:
    """The command of one night: this command line without what concerns scheduling alone."""
    own = ("action=", "at=", "install=", "schedule.form=", "schedule.at=")
    words = [word for word in overrides if not word.startswith(own)]
    if not any(word.startswith("+experiment=") for word in words):
        words.insert(0, "+experiment=nightly")
    root = Path(settings.tracking.root).resolve()
    return Night(
        argv=(sys.executable, "-m", "runner", *config_directory(sys.argv), *words, "execution.quiet=true", "yes=true"),
        folder=str(config_folder().parent),
        at=settings.at or settings.schedule.at,
        limit_minutes=settings.schedule.time_limit_minutes,
        lock=str(root / "nightly.lock"),
        log=str(root / "nightly.log"),
        told=str(told_file(RootPaths(root))),
        mail_command=settings.schedule.mail_command,
    )


def config_directory(argv: Sequence[str]) -> tuple[str, ...]:
    """Hydra's --config-dir of this command line with an absolute path, since the night starts elsewhere; () without one."""
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            folder = value if equals else (argv[index + 1] if index + 1 < len(argv) else "")
            return ("--config-dir", str(Path(folder).resolve()))
    return ()


def has_user_systemd() -> bool:
    """True when a systemd user manager answers (a binary alone is not enough: containers have it, unbooted)."""
    if shutil.which("systemctl") is None:
        return False
    done = subprocess.run(["systemctl", "--user", "is-system-running"], capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip() in ("running", "degraded", "starting")


def install_systemd(units: dict[str, str]) -> None:
    folder = Path.home() / ".config/systemd/user"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in units.items():
        (folder / name).write_text(text, encoding="utf-8")
    for words in (["daemon-reload"], ["enable", "--now", f"{UNIT}.timer"]):
        done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            raise UserError(f"systemctl --user {' '.join(words)}: {done.stderr.strip()}; the files are in {folder}")
    print(f"# installed in {folder}; `loginctl enable-linger` lets it run while nobody is logged in")


def install_cron(line: str) -> None:
    """Adds or replaces our own line; every other line of the user's crontab stays as it is."""
    if shutil.which("crontab") is None:
        raise UserError("neither a systemd user manager nor crontab is here; install cron, or add the printed line to your scheduler")
    listed = subprocess.run(["crontab", "-l"], capture_output=True, text=True, timeout=10, check=False)
    kept = [old for old in listed.stdout.splitlines() if MARK not in old] if listed.returncode == 0 else []
    text = "\n".join([*kept, f"{line} {MARK}"]) + "\n"
    done = subprocess.run(["crontab", "-"], input=text, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        raise UserError(f"crontab refused the line: {done.stderr.strip()}")
    print("# installed in the crontab")
