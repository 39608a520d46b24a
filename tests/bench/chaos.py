"""`make chaos`: a seeded campaign of tiny studies, each disturbed at a random instant, then resumed and compared with an undisturbed
one. SIMULATED engine. `python -m tests.bench.chaos [studies=100] [seed=1] [jobs=2]`; each verdict goes to output/chaos.jsonl as it
comes, the table to output/chaos.md. `again=28,31` runs single studies of the campaign once more: a study's last verdict counts."""

import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.bench.chaos_clock import CLOCK_EVENTS
from tests.bench.chaos_events import EVENTS, Event, Verdict
from tests.bench.chaos_files import FILE_EVENTS
from tests.bench.chaos_study import ChaosStudy, Result

OUTPUT = Path(__file__).parent / "output" / "chaos.md"
ALL = (*EVENTS, *CLOCK_EVENTS, *FILE_EVENTS)


class Undisturbed:
    """Results of studies that nothing disturbs, one for each configuration, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._count = 0
        self._known: dict[tuple[str, ...], tuple[Result, float]] = {}

    def same(self, words: Sequence[str], like: Sequence[str]) -> None:
        """Says that a study with `words` must come to the same as one with `like`, so that only that one is run."""
        self._known[tuple(words)] = self.of(like)

    def of(self, words: Sequence[str]) -> tuple[Result, float]:
        """The result, and how many seconds it took. Raises RuntimeError when even that study does not end well."""
        key = tuple(word for word in words if not word.startswith("tracking."))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._run(key)
            return self._known[key]

    def _run(self, key: tuple[str, ...]) -> tuple[Result, float]:
        self._count += 1
        study = ChaosStudy(self._folder / f"undisturbed-{self._count}", list(key))
        try:
            began = time.monotonic()
            study.start()
            code = study.wait()
            took = time.monotonic() - began
            left, _ = study.left_after(10.0)
            if code not in (0, 3) or left:
                raise RuntimeError(f"the undisturbed study {key} ended with {code}, left {left}\n{study.output[-2000:]}")
            return study.result(), took
        finally:
            study.end()


def one(event: Event, number: int, seed: int, folder: Path, undisturbed: Undisturbed) -> Verdict:
    """Disturbs one study, resumes it, judges it."""
    rng = random.Random(f"{seed}/{number}/{event.name}")
    began = time.monotonic()
    study = ChaosStudy(folder / f"{number:03d}", list(event.words), ray=event.ray)
    verdict = Verdict(number=number, event=event.name, ray=event.ray)
    try:
        expected, length = undisturbed.of(event.words)
        with event.around(study, verdict):
            event.disturb(study, rng, rng.uniform(0.15, 0.95) * (length + (10.0 if event.ray else 0.0)), verdict)
            if not verdict.problems:
                verdict.left, verdict.gone_s = study.left_after(event.gone_s)
                verdict.problems += [f"left behind: {line}" for line in verdict.left]
        for _ in range(4):
            if verdict.code in (0, 3):
                break
            study.start()
            verdict.code = study.wait()
            verdict.resumes += 1
        if verdict.code not in (0, 3):
            verdict.problems.append(f"not finished after {verdict.resumes} resumes: exit code {verdict.code}")
        else:
            verdict.problems += study.problems(expected)
        left, _ = study.left_after(10.0)
        verdict.problems += [f"left at the end: {line}" for line in left]
        if "Traceback (most recent call last)" in study.output:
            verdict.problems.append("a traceback was shown")
    except Exception as error:
        verdict.problems.append(f"{type(error).__name__}: {error}")
    finally:
        study.end()
    verdict.seconds = time.monotonic() - began
    if verdict.problems:
        print(study.output[-3000:], file=sys.stderr)
    else:
        shutil.rmtree(study.folder, ignore_errors=True)
    return verdict


def campaign(events: Mapping[int, Event], seed: int, folder: Path, jobs: int = 1) -> Iterator[Verdict]:
    """Verdicts as they come. `jobs` studies at a time: most of a study is waiting."""
    undisturbed = Undisturbed(folder)
    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(one, event, number, seed, folder, undisturbed) for number, event in events.items()]
        for done in as_completed(started):
            yield done.result()


def read_verdicts(path: Path) -> dict[int, Verdict]:
    """The last verdict of each study; a study that was run again counts once."""
    if not path.exists():
        return {}
    found = [Verdict(**json.loads(line)) for line in path.read_text().splitlines()]
    return {verdict.number: verdict for verdict in found}


def chosen(studies: int, seed: int) -> list[Event]:
    """Each event at least once, then more of them by their weight."""
    rng = random.Random(seed)
    events = list(ALL)
    more = rng.choices(ALL, [event.weight for event in ALL], k=max(0, studies - len(events)))
    return (events + more)[:studies]


def table(verdicts: Sequence[Verdict], seed: int) -> str:
    names = list(dict.fromkeys((verdict.event, verdict.ray) for verdict in verdicts))
    lines = [
        f"SIMULATED engine, {len(verdicts)} studies, seed {seed}. Judged by a walk of /proc and by the records.",
        "",
        "| event | executor | studies | as undisturbed | resumes | last process gone, s (max) | exit codes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, ray in names:
        some = [verdict for verdict in verdicts if (verdict.event, verdict.ray) == (name, ray)]
        good = sum(not verdict.problems for verdict in some)
        codes = ", ".join(sorted({str(verdict.first_code) for verdict in some}))
        slowest = max(verdict.gone_s for verdict in some)
        lines.append(
            f"| {name} | {'ray' if ray else 'inline'} | {len(some)} | {good} | {sum(v.resumes for v in some)} | {slowest:.1f} | {codes} |"
        )
    lines += ["", f"{sum(not verdict.problems for verdict in verdicts)} of {len(verdicts)} as undisturbed."]
    for verdict in verdicts:
        lines += [f"- study {verdict.number}, {verdict.event}: {problem}" for problem in verdict.problems]
    return "\n".join(lines) + "\n"


def main() -> int:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    seed = int(given.get("seed", "1"))
    events = dict(enumerate(chosen(int(given.get("studies", "100")), seed)))
    records = OUTPUT.with_suffix(".jsonl")
    if "only" in given:
        events = dict(enumerate([event for event in ALL if given["only"] in event.name] * int(given.get("times", "1"))))
    elif "again" in given:
        events = {int(number): events[int(number)] for number in given["again"].split(",")}
    else:
        records.unlink(missing_ok=True)
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        for verdict in campaign(events, seed, Path(folder), int(given.get("jobs", "2"))):
            verdicts.append(verdict)
            print(verdict.line(), flush=True)
            if "only" not in given:
                OUTPUT.parent.mkdir(exist_ok=True)
                with records.open("a") as file:
                    file.write(json.dumps(asdict(verdict)) + "\n")
    if "only" not in given:
        verdicts = list(read_verdicts(records).values())
        OUTPUT.write_text(table(verdicts, seed))
    print(table(verdicts, seed))
    return 0 if all(not verdict.problems for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
