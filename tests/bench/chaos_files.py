"""What may happen to the files of a study: a limit on their size, a line torn by a power cut."""

import random

from tests.bench.chaos_events import Event, Verdict, ended, kills
from tests.bench.chaos_study import ChaosStudy


def size_limit(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    """No file may grow beyond a size that the seed chooses (RLIMIT_FSIZE): plan, journal, record or log is refused in the middle."""
    limit = rng.choice((4 << 10, 12 << 10, 24 << 10, 48 << 10))
    study.start(prefix=("prlimit", f"--fsize={limit}"))
    ended(study, verdict)
    if verdict.code not in (0, 3, 4):
        verdict.problems.append(f"a limit of {limit} bytes a file: exit code {verdict.code}, not 4")


def torn_line(study: ChaosStudy, rng: random.Random, at: float, verdict: Verdict) -> None:
    """kill -9, and the journal's last line is half there, as a power cut leaves it."""
    kills("driver")(study, rng, at, verdict)
    journal = study.paths / "journal.jsonl"
    if not journal.exists():
        return
    lines = journal.read_bytes().splitlines(keepends=True)
    if len(lines) < 3:
        return
    cut = rng.randrange(1, len(lines[-1]))
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
    verdict.code = None  # whatever the driver came to, this must be resumed
    study.start()
    verdict.code = study.wait()
    verdict.resumes += 1
    finished = b'"kind":"study_finished"' in lines[-1]
    if "was torn by a crash and is cut off" not in study.output and not finished:
        verdict.problems.append("the torn line is not reported")


FILE_EVENTS = (
    Event("file-size limit", size_limit, weight=2),
    Event("power cut: last line torn", torn_line, weight=3),
)
