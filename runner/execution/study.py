"""One study on disk: made, found again, refused. What must not change between two drivers is Plan.identity."""

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from filelock import FileLock, Timeout

from runner.errors import NodeBusy, UserError, instead
from runner.execution.revision import code_revision
from runner.records.files import read_json, write_json
from runner.records.journal import Journal, each_entry
from runner.records.lean import lean
from runner.records.paths import RootPaths, StudyPaths, safe_name
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord


@dataclass(frozen=True)
class OpenStudy:
    """A study with its driver lock held. `torn`: text cut from the journal."""

    paths: StudyPaths
    plan: Plan
    journal: Journal
    lock: FileLock
    resumed: bool
    torn: str | None = None
    replaced: str = ""

    def history(self) -> tuple[list[LaunchRecord], list[dict[str, Any]]]:
        """What earlier drivers did, from the journal: finished launches (lean, in order; of two with one id the last counts) and the
        entries that are neither launches nor phases. Read anew at each call, line by line: 1,200 whole launches are a load."""
        records: dict[str, LaunchRecord] = {}
        entries: list[dict[str, Any]] = []
        for entry in each_entry(self.paths.journal):
            if entry.get("kind") == "launch_finished":
                record = lean(LaunchRecord.model_validate(entry["launch"]))
                records[record.launch] = record
            elif entry.get("kind") != "phase_finished":
                entries.append(entry)
        return list(records.values()), entries

    @property
    def records(self) -> list[LaunchRecord]:
        return self.history()[0]

    @property
    def entries(self) -> list[dict[str, Any]]:
        return self.history()[1]

    def discard(self) -> None:
        """Takes back a study that was begun here and has launched nothing (the node was busy), or it would pass for the latest one."""
        if not self.resumed and not any(self.paths.folder.glob("launches/*")):
            self.close()
            shutil.rmtree(self.paths.folder, ignore_errors=True)

    def close(self) -> None:
        self.journal.close()
        self.lock.release()


def open_study(root: RootPaths, plan: Plan, *, name: str | None, new: bool, config: Mapping[str, Any]) -> OpenStudy:
    """Continues the newest unfinished study of the same experiment whose plan is the same, or begins one.

    Raises UserError when `name` is a study with another plan (the message names what changed), NodeBusy when another driver
    has it."""
    if name == "latest":
        name = latest_study(root, plan.experiment).name
    if name is not None:
        paths = root.study(name)
        if paths.plan.exists() and not new:
            old = Plan.model_validate(read_json(paths.plan))
            changed = differences(old.identity, plan.identity)
            if changed:
                raise UserError(f"study {name} was begun with another plan: {changed}; give another study.name or study.new=true")
            return _continue(paths, old)
        if paths.plan.exists():
            raise UserError(f"study {name} exists already; study.new=true needs a new study.name")
        return _begin(paths, plan, config, "")
    replaced = ""
    if not new:
        for paths in unfinished(root, plan.experiment):
            old = Plan.model_validate(read_json(paths.plan))
            changed = differences(old.identity, plan.identity)
            if not changed:
                return _continue(paths, old)
            replaced = replaced or f"{paths.name} is not continued: {changed}"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = safe_name(f"{plan.experiment or 'study'}-{stamp}")
    paths, number = root.study(base), 2
    while paths.folder.exists():
        paths, number = root.study(f"{base}-{number}"), number + 1
    return _begin(paths, plan, config, replaced)


def _lock(paths: StudyPaths) -> FileLock:
    try:
        paths.folder.mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError, PermissionError) as problem:
        raise UserError(f"{paths.folder} cannot be made ({problem.strerror}); give tracking.root=FOLDER that can be written") from None
    lock = FileLock(paths.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise NodeBusy(f"another driver works on study {paths.name}; wait for it or give another study.name") from None
    return lock


def _begin(paths: StudyPaths, plan: Plan, config: Mapping[str, Any], replaced: str) -> OpenStudy:
    lock = _lock(paths)
    plan = plan.model_copy(update={"study": paths.name})
    write_json(paths.plan, plan.model_dump(mode="json", by_alias=True))
    _make_newest(paths)
    write_json(paths.config, dict(config))
    journal = Journal(paths.journal)
    revision = code_revision()
    journal.append("study_started", study=paths.name, experiment=plan.experiment, identity=plan.identity, code_revision=revision)
    return OpenStudy(paths, plan, journal, lock, resumed=False, replaced=replaced)


def _make_newest(paths: StudyPaths) -> None:
    """A new study is the newest, also where the clock was set back since the last one began."""
    others = [folder / paths.plan.name for folder in paths.folder.parent.glob("*") if folder != paths.folder]
    newest = max((plan.stat().st_mtime_ns for plan in others if plan.is_file()), default=0)
    if newest >= paths.plan.stat().st_mtime_ns:
        os.utime(paths.plan, ns=(newest + 1_000_000, newest + 1_000_000))


def _continue(paths: StudyPaths, plan: Plan) -> OpenStudy:
    lock = _lock(paths)
    journal = Journal(paths.journal)
    journal.append("study_resumed", study=paths.name, launches=_finished_launches(paths), torn=journal.torn, code_revision=code_revision())
    return OpenStudy(paths, plan, journal, lock, resumed=True, torn=journal.torn)


def _finished_launches(paths: StudyPaths) -> int:
    """How many launches the journal holds, without reading them."""
    with open(paths.journal, "rb") as file:
        return sum(b'"kind":"launch_finished"' in line[:200] for line in file)


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What changed between two plan identities, for a message; '' when nothing did."""
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return "; ".join(f"{name} changed ({_short(old.get(name))} -> {_short(new.get(name))})" for name in names)


def _short(value: str | None) -> str:
    return "nothing" if value is None else value if len(value) <= 24 else value[:12]


def studies(root: RootPaths, experiment: str = "") -> list[StudyPaths]:
    """All studies (of an experiment), newest first."""
    found = [StudyPaths(folder) for folder in root.studies.glob("*") if (folder / "plan.json").is_file()]
    if experiment:
        found = [paths for paths in found if read_json(paths.plan).get("experiment") == experiment]
    return sorted(found, key=lambda paths: paths.plan.stat().st_mtime, reverse=True)


def unfinished(root: RootPaths, experiment: str) -> list[StudyPaths]:
    """Studies of the experiment whose journal has no study_finished, newest first."""
    return [paths for paths in studies(root, experiment) if not is_finished(paths)]


def is_finished(paths: StudyPaths) -> bool:
    if not paths.journal.exists():
        return False
    with open(paths.journal, "rb") as file:
        return any(b'"kind":"study_finished"' in line for line in file)


def latest_study(root: RootPaths, experiment: str = "") -> StudyPaths:
    """Raises UserError when there is none."""
    found = studies(root, experiment)
    if not found:
        what = f"of {experiment} " if experiment else ""
        raise UserError(f"there is no study {what}under {root.studies}; run one first: python -m runner +experiment=smoke")
    return found[0]


def named_study(root: RootPaths, name: str | None, experiment: str = "") -> StudyPaths:
    """The study NAME, or the newest one for `latest` or null. Raises UserError with the choices."""
    if name in (None, "latest"):
        return latest_study(root, experiment)
    paths = root.study(str(name))
    if not paths.plan.exists():
        names = [study.name for study in studies(root)]
        raise UserError(f"there is no study {name!r}{instead(name, names)}")
    return paths
