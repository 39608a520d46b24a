"""The table of `make bench-client` as Markdown, and the same figures as JSON. Goals are checked against the measured figures."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "this client"
HEAD = """# What the load client can do

**Question.** How far are the latencies that a load client reports from what the server did, and what does the client cost?

**Method.** A loopback server of its own process stamps every chunk as it hands it to the kernel (`runner/loadgen/echo.py`); all streams
speak on one tick of 10 ms, the worst case of a decode batch. The same shape for every client: 64 ids in, 64 tokens out, one token a
chunk. An error is |what the client reports - what the server's stamps give|; for TTFT the server's clock starts when it has read the
request, so its own queue is in every client's error, the bare reader's too: that one is the floor. CPU seconds are the client's own
beyond its start (this client: reading the streams afterwards included). "Event loop alone" is this client with its HTTP parser taken
out and without reading the streams: what uvloop and the kernel cost, below which no client on this loop can be. Repeat: `make bench-client`.
"""


def write_table(
    folder: Path, results: Sequence[Mapping[str, Any]], start: Mapping[str, float], about: Mapping[str, str], versions: Mapping[str, str]
) -> None:
    """Writes README.md and results.json. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [HEAD]
    lines.append("**Machine.** " + "; ".join(f"{key}: {value}" for key, value in about.items()) + ".")
    lines.append("**Versions.** " + ", ".join(f"{key} {value}" for key, value in versions.items()) + ".\n")
    lines += goals(results, start)
    lines.append("\n## Measured\n")
    lines.append("Errors in ms, p50 / p99. CPU: seconds a million chunks. Lag: dispatch - due, p99, ms. Rate: sent over asked.\n")
    lines.append("| load | client | requests | chunks/s | TTFT error | TPOT error | gap error | CPU | lag | rate |")
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for row in results:
        lag = "" if row["lag_p99"] is None else number(row["lag_p99"])
        rate = "" if row["rate_error"] is None else f"{row['rate_error']:+.2%}"
        cells = [row["level"], row["client"], f"{row['requests']:.0f}", f"{row['chunks_per_s']:,.0f}"]
        cells += [f"{number(row[f'{name}_p50'])} / {number(row[f'{name}_p99'])}" for name in ("ttft", "tpot", "gap")]
        lines.append("| " + " | ".join([*cells, number(row["cpu_s_per_million"]), lag, rate]) + " |")
    lines.append("\n| start to first request | s |\n|---|---|")
    lines += [f"| {key} | {number(value)} |" for key, value in start.items()]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = {"machine": dict(about), "versions": dict(versions), "start_s": dict(start), "results": list(results)}
    (folder / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def goals(results: Sequence[Mapping[str, Any]], start: Mapping[str, float]) -> list[str]:
    """One line a goal: measured, and met or missed; with the floor beside it where a bare reader was measured."""
    ours = {row["level"]: row for row in results if row["client"] == OURS}
    floor = {row["level"]: row for row in results if row["client"] == "bare reader"}
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
