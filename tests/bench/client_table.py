"""The table of `make bench-client` as Markdown, from its records. Goals are checked against the measured figures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from runner.records.files import write_text

OURS, BARE, FLOOR, SGLANG = "this client", "bare reader", "event loop alone", "sglang.bench_serving"
QUIET = 0.1  # of the processors
HEAD = """# What the load client can do

**Question.** How far are the latencies that a load client reports from what the server did, and what does the client cost?

**Method.** A loopback server of its own process stamps every chunk as it hands it to the kernel (`runner/loadgen/echo.py`); all streams
speak on one tick of 10 ms, the worst case of a decode batch. The same shape for every client: 64 ids in, 64 tokens out, one token a
chunk. An error is |what the client reports - what the server's stamps give|; for TTFT the server's clock starts when it sees the
request (it looks after every fourth chunk that it sends), so what it is late is in every client's error, the bare reader's too: that
one is the floor. CPU seconds are the client's own
beyond its start (this client: reading the streams afterwards included). "Event loop alone" is this client with its HTTP parser taken
out and without reading the streams: what its loop and the kernel cost, below which it cannot be. A goal in CPU seconds was written for a
machine whose bare reader took 6; the column beside it says how many times the bare reader's it is here. Repeat: `make bench-client`; each step is a line of records.jsonl.
"""


def write_table(folder: Path, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes README.md from the records: medians over repeats; partial while steps are missing. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    good = [row for row in rows if "failed" not in row]
    results = medians([row["result"] for row in good if "result" in row])
    start = {
        client: median([row["start_s"] for row in good if row["client"] == client and "start_s" in row])
        for client in dict.fromkeys(row["client"] for row in good if "start_s" in row)
    }
    lines = [HEAD]
    whole = int(head["settings"]["steps"])
    if len(good) < whole:
        lines.append(f"**PARTIAL: {len(good)} of {whole} steps.** Run `make bench-client` again: it goes on where it stopped.\n")
    about = {**head["machine"], **{key: value for key, value in head["settings"].items() if key not in ("steps", "short")}}
    lines.append("**Machine.** " + "; ".join(f"{key}: {value}" for key, value in about.items()) + ".")
    lines.append("**Versions.** " + ", ".join(f"{key} {value}" for key, value in head["versions"].items()) + ".")
    if rows:
        busy = [row["busy_before"] for row in rows]
        lines.append(
            f"**How quiet.** Processors in use in the half second before a step, when nothing of this benchmark ran: median {median(busy):.0%},"
            f" at most {max(busy):.0%}; from {rows[0]['at']} to {rows[-1]['at']}."
            + (" **Not a quiet machine: read the figures as ratios to the bare reader's.**" if median(busy) > QUIET else "")
        )
    lines += ["", *goals(results, start)]
    lines.append("\n## Measured\n")
    lines.append("Errors in ms, p50 / p99. CPU: seconds a million chunks, and how many times the bare reader's at that level.")
    lines.append("Lag: dispatch - due, p99, ms. Rate: sent over asked. Medians over repeats.\n")
    lines.append("| load | client | requests | chunks/s | TTFT error | TPOT error | gap error | CPU | / bare | lag | rate |")
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    floor = {row["level"]: row["cpu_s_per_million"] for row in results if row["client"] == BARE}
    for row in results:
        lag = "" if row["lag_p99"] is None else number(row["lag_p99"])
        rate = "" if row["rate_error"] is None else f"{row['rate_error']:+.2%}"
        cells = [row["level"], row["client"], f"{row['requests']:.0f}", f"{row['chunks_per_s']:,.0f}"]
        cells += [f"{number(row[f'{name}_p50'])} / {number(row[f'{name}_p99'])}" for name in ("ttft", "tpot", "gap")]
        ratio = f"{row['cpu_s_per_million'] / floor[row['level']]:.2f}" if floor.get(row["level"]) else ""
        lines.append("| " + " | ".join([*cells, number(row["cpu_s_per_million"]), ratio, lag, rate]) + " |")
    lines.append("\n| start to first request | s |\n|---|---|")
    lines += [f"| {key} | {number(value)} |" for key, value in start.items()]
    failed = [row for row in rows if "failed" in row]
    if failed:
        lines.append("\nSteps that failed:\n")
        lines += [f"- {row['level']}, {row['client']}, repeat {row['repeat'] + 1}: `{row['failed'][:200]}`" for row in failed]
    write_text(folder / "README.md", "\n".join(lines) + "\n")


def medians(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a (level, client), in the order of the first repeat: field by field the median of what is a finite number."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["level"], result["client"]), []).append(result)
    found = []
    for group in groups.values():
        merged = dict(group[0])
        for name, value in merged.items():
            if not isinstance(value, str):
                values = [result[name] for result in group if result[name] is not None and math.isfinite(result[name])]
                merged[name] = median(values) if values else value
        found.append(merged)
    return sorted(found, key=lambda row: list(dict.fromkeys(result["level"] for result in results)).index(row["level"]))


def goals(results: Sequence[Mapping[str, Any]], start: Mapping[str, float]) -> list[str]:
    """One line a goal: measured, and met or missed; with the floor beside it where a bare reader was measured."""
    ours = {row["level"]: row for row in results if row["client"] == OURS}
    floor = {row["level"]: row for row in results if row["client"] == BARE}
    c64, c256 = "closed loop, 64 streams", "closed loop, 256 streams"
    open_loops = [level for level in ours if level.startswith("Poisson")]
    checks: list[tuple[str, float, float, float | None]] = []

    def add(text: str, level: str, field: str, limit: float) -> None:
        if level in ours:
            checks.append((text, ours[level][field], limit, floor.get(level, {}).get(field)))

    add("TTFT error p50 at 64 streams, ms", c64, "ttft_p50", 1.0)
    add("TTFT error p50 at 256 streams, ms", c256, "ttft_p50", 5.0)
    for level in (c64, c256):
        add(f"TPOT error p99, {level}, ms", level, "tpot_p99", 0.1)
    for level in (c64, c256):
        add(f"CPU seconds a million chunks, {level}", level, "cpu_s_per_million", 8.0)
    for level in open_loops:
        add(f"dispatch lag p99, {level}, ms", level, "lag_p99", 2.0)
        checks.append((f"rate error, {level}, %", abs(ours[level]["rate_error"]) * 100, 0.1, None))
    checks += [(f"first request, {key}, s", value, 0.3, None) for key, value in start.items() if key.startswith(OURS)]
    lines = ["## Goals\n", "| goal | limit | measured | bare reader | |", "|---|---|---|---|---|"]
    for text, value, limit, bare in checks:
        lines.append(
            f"| {text} | {limit:g} | {number(value)} | {'' if bare is None else number(bare)} | {'met' if value <= limit else '**missed**'} |"
        )
    return lines


def number(value: float) -> str:
    """Three significant digits, no exponent."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
