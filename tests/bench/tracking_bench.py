"""`make bench-tracking`: launch times with tracking off, into the local store, and into a server that takes 2 s a call. SIMULATED engine.

The same small study three times, in turn, several rounds; what is compared are the journalled spans of its launches.
`python -m tests.bench.tracking_bench [rounds=3] [delay_s=2]`; the table is also written to output/tracking.md."""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.chaos_study import ChaosStudy
from tests.bench.slow_mlflow import SlowMlflow, serving

OUTPUT = Path(__file__).parent / "output" / "tracking.md"


def spans(study: ChaosStudy) -> dict[str, list[float]]:
    """Seconds of every launch: from launch_started to launch_finished, its server's start, and from one launch's end to the next."""
    found: dict[str, list[float]] = {"launch": [], "start": [], "between": []}
    begun, ended = 0.0, None
    for entry in study.entries():
        if entry["kind"] == "launch_started":
            begun = entry["t"]
            if ended is not None:
                found["between"].append(begun - ended)
        elif entry["kind"] == "launch_finished":
            ended = entry["t"]
            found["launch"].append(ended - begun)
            found["start"].append(entry["launch"]["stages"]["start"])
    return found


def run(folder: Path, words: list[str]) -> tuple[dict[str, list[float]], list[str]]:
    """The spans and the kinds of the journal's lines. Raises RuntimeError when the study does not finish."""
    study = ChaosStudy(folder, words)
    try:
        study.start()
        code = study.wait(600)
        if code != 0:
            raise RuntimeError(f"the study ended with {code}\n{study.output[-2000:]}")
        return spans(study), [entry["kind"] for entry in study.entries() if entry["kind"] != "nodes"]
    finally:
        study.end()


def main() -> int:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    rounds, delay = int(given.get("rounds", "3")), float(given.get("delay_s", "2"))
    blocks = ["protocol.min_blocks=4", "protocol.max_blocks=4"]
    found: dict[str, dict[str, list[float]]] = {}
    orders: dict[str, list[str]] = {}
    calls = 0
    with tempfile.TemporaryDirectory(prefix="tracking-") as name:
        for number in range(rounds):
            fake = SlowMlflow(Path(name) / "artifacts", delay)
            with serving(fake) as address:
                tracked = ["tracking.enabled=true", "tracking.timeout_s=2"]
                ways = {
                    "tracking off": ["tracking.enabled=false"],
                    "local store": tracked,
                    f"a server of {delay:g} s a call": [*tracked, f"tracking.uri={address}"],
                }
                for way, words in ways.items():
                    times, kinds = run(Path(name) / f"{number}-{len(orders)}-{abs(hash(way))}", [*blocks, *words])
                    for what, values in times.items():
                        found.setdefault(way, {}).setdefault(what, []).extend(values)
                    orders.setdefault(way, kinds)
            calls += fake.calls
    same = len({tuple(kinds) for kinds in orders.values()}) == 1
    lines = [
        f"SIMULATED engine, {rounds} rounds of {len(next(iter(found.values()))['launch']) // rounds} launches each way, in turn, "
        f"{os.cpu_count()} cores, machine load {os.getloadavg()[0]:.1f}. Medians (upper quartile) in s.",
        "",
        "| tracking | launch | of it: start | between two launches |",
        "|---|---|---|---|",
    ]
    for way, times in found.items():
        cells = [f"{statistics.median(values):.3f} ({statistics.quantiles(values, n=4)[2]:.3f})" for values in times.values()]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    lines += [
        "",
        f"The slow server received {calls} calls. The journals hold the same lines in the same order: {'yes' if same else 'NO'}.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(text)
    return 0 if same and calls else 1


if __name__ == "__main__":
    sys.exit(main())
