"""The communication budget: what all-reduces cost a forward pass, and the most that any communication flag can gain.

Bandwidth-only ring: t = 2 (N - 1) / N * bytes / bandwidth (Patarasu and Yuan 2009, J. Parallel Distrib. Comput. 69:117). Latency
is left out there, and small messages are nearly all latency, so every algorithm with a measured or published cost is shown
beside it as alpha + ring time at its own bandwidth (Hockney 1994, Parallel Comput. 20:389)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.spec.model import ModelSpec
from runner.spec.node import LinkCost, NodeSpec

Array = NDArray[np.float64]
BANDWIDTH_ONLY = "bandwidth_only"
ALWAYS = (1, 128, 1024)
HUBER = 1.345


def message_bytes(model: ModelSpec, tokens: int) -> int:
    """One all-reduce of `tokens` rows of activations."""
    return tokens * model.hidden_size * model.dtype_bytes


def all_reduces_per_pass(model: ModelSpec) -> int:
    return model.num_layers * model.all_reduces_per_layer


def ring_us(size: float, ranks: int, gb_s: float) -> float:
    """Microseconds of a ring all-reduce of `size` bytes at `gb_s` (1e9 bytes a second and direction); 0 for one rank."""
    return 2 * (ranks - 1) / ranks * size / (gb_s * 1e3) if ranks > 1 else 0.0


def algorithm_us(cost: LinkCost, size: float, ranks: int) -> float:
    """alpha + ring time at the algorithm's own bandwidth, microseconds."""
    return cost.alpha_us + ring_us(size, ranks, cost.gb_s) if ranks > 1 else 0.0


def budget(
    model: ModelSpec,
    node: NodeSpec,
    workload_rows: Mapping[str, int] | None = None,
    *,
    ranks: int | None = None,
    pass_ms: Mapping[str, float] | None = None,
    in_use: str | None = None,
    measured: Mapping[str, LinkCost] | None = None,
) -> dict[str, Any]:
    """`workload_rows`: phase -> rows of one forward pass (streams x draft tokens in decode, the chunk in prefill). `pass_ms`:
    phase -> measured time of one pass (TPOT in decode), ms. `ranks`: tensor-parallel size, default the node's GPUs. `measured`:
    algorithm -> cost fitted on this node; it goes over `node.all_reduce`, which may be published. `in_use`: the baseline's
    algorithm; default the slowest known one, which keeps the bound an upper one.

    Returns `rows` (tokens, bytes, algorithm, us, ms_per_pass, share_of_tpot, bound_pct; the last two null where no pass time of
    that size is known), `phases` (the bound a phase) and what the figures rest on."""
    size = ranks if ranks is not None else max(node.gpus, 1)
    costs = {**node.all_reduce, **(measured or {})}
    phases = dict(workload_rows or {})
    times = {rows: (pass_ms or {})[phase] for phase, rows in phases.items() if phase in (pass_ms or {})}
    rows = []
    for tokens in sorted({*ALWAYS, *phases.values()}):
        for name in (BANDWIDTH_ONLY, *costs):
            rows.append(_row(model, node, tokens, size, name, costs.get(name), times.get(tokens)))
    return {
        "rows": rows,
        "phases": [_phase(model, node, phase, tokens, size, costs, in_use, (pass_ms or {}).get(phase)) for phase, tokens in phases.items()],
        "model": model.name,
        "hidden_size": model.hidden_size,
        "all_reduces_per_pass": all_reduces_per_pass(model),
        "ranks": size,
        "link_gb_s": node.link_gb_s,
        "measured_here": sorted(measured or {}),
        "sources": {name: cost.source for name, cost in costs.items()},
    }


def _row(
    model: ModelSpec, node: NodeSpec, tokens: int, ranks: int, name: str, cost: LinkCost | None, pass_time: float | None
) -> dict[str, Any]:
    size = message_bytes(model, tokens)
    us = ring_us(size, ranks, node.link_gb_s) if cost is None else algorithm_us(cost, size, ranks)
    total = us * all_reduces_per_pass(model) / 1e3
    share = min(total / pass_time, 1.0) if pass_time else None
    return {
        "tokens": tokens,
        "bytes": size,
        "algorithm": name,
        "us": round(us, 4),
        "ms_per_pass": round(total, 5),
        "share_of_tpot": None if share is None else round(share, 5),
        "bound_pct": None if share is None else round(100 * share, 3),
    }


def _phase(
    model: ModelSpec,
    node: NodeSpec,
    phase: str,
    tokens: int,
    ranks: int,
    costs: Mapping[str, LinkCost],
    in_use: str | None,
    pass_time: float | None,
) -> dict[str, Any]:
    """The bound: a flag that made communication free would gain its share of the pass. With no measured cost there is none."""
    size = message_bytes(model, tokens)
    if in_use is not None and in_use in costs:
        name = in_use
    else:
        name = max(costs, key=lambda key: algorithm_us(costs[key], size, ranks)) if costs else BANDWIDTH_ONLY
    row = _row(model, node, tokens, ranks, name, costs.get(name), pass_time)
    return {
        "phase": phase,
        "tokens": tokens,
        "algorithm": name,
        "ms_per_pass": row["ms_per_pass"],
        "pass_ms": pass_time,
        "share_of_tpot": row["share_of_tpot"] if costs else None,
        "bound_pct": row["bound_pct"] if costs else None,
    }


def may_leave_out(bound_pct: float | None, margin_pct: float, *, measured_here: bool, fusion: bool) -> bool:
    """May a communication arm be left out of the plan? Only by a bound measured on this node, and never a fusion arm, which
    removes norm and residual kernels too."""
    return measured_here and not fusion and bound_pct is not None and bound_pct < margin_pct


def fit_link(sizes: Sequence[float], us: Sequence[float], ranks: int, source: str = "") -> LinkCost:
    """alpha and bandwidth from probe measurements: least squares of relative errors with Huber's weights (Huber 1964; Holland and
    Welsch 1977), alpha and slope kept non-negative. Several measurements of one size may be given. Raises ValueError for fewer
    than two sizes or one rank."""
    x, y = np.asarray(sizes, dtype=float), np.asarray(us, dtype=float)
    good = np.isfinite(x) & np.isfinite(y) & (y > 0) & (x >= 0)
    x, y = x[good], y[good]
    if ranks < 2 or len(np.unique(x)) < 2:
        raise ValueError("a fit needs at least two message sizes and two ranks")
    weight = np.ones_like(y)
    alpha = slope = 0.0
    for _ in range(50):
        before = (alpha, slope)
        alpha, slope = _line(x, y, weight / y**2)
        residual = (y - alpha - slope * x) / y
        scale = float(np.median(np.abs(residual))) / 0.6745
        if scale < 1e-9:
            break
        weight = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residual), 1e-300))
        if np.allclose(before, (alpha, slope), rtol=1e-9, atol=1e-15):
            break
    factor = 2 * (ranks - 1) / ranks
    # A line without slope (all latency) has no bandwidth of its own; a petabyte a second stands for that.
    return LinkCost(alpha_us=alpha, gb_s=min(factor / (slope * 1e3), 1e6) if slope > 0 else 1e6, source=source)


def _line(x: Array, y: Array, w: Array) -> tuple[float, float]:
    """Weighted least squares y = a + b x with a, b >= 0: the best of the inner solution and the two edges."""
    total, sx, sy = float(w.sum()), float(w @ x), float(w @ y)
    sxx, sxy = float(w @ x**2), float(w @ (x * y))
    determinant = total * sxx - sx**2
    if determinant > 0:
        slope = (total * sxy - sx * sy) / determinant
        alpha = (sy - slope * sx) / total
        if alpha >= 0 and slope >= 0:
            return alpha, slope
    edges = [(sy / total, 0.0), (0.0, max(sxy / sxx, 0.0) if sxx > 0 else 0.0)]
    return min(edges, key=lambda edge: float(w @ (y - edge[0] - edge[1] * x) ** 2))


def budget_text(result: Mapping[str, Any]) -> str:
    """The budget as a table for people, with what measured latency does to the conclusion."""
    calls, ranks = result["all_reduces_per_pass"], result["ranks"]
    if ranks < 2:
        return f"Communication budget: {result['model']} on one GPU: no all-reduce is made, so no communication flag can matter here."
    lines = [
        f"Communication budget: {result['model']}, hidden {result['hidden_size']}, {ranks} ranks, {calls} all-reduces a pass, "
        f"link {result['link_gb_s']:g} GB/s",
        "",
        f"{'tokens':>7} {'bytes':>11}  {'algorithm':<16} {'us':>10} {'ms/pass':>10} {'share of TPOT':>14} {'bound':>8}",
    ]
    for row in result["rows"]:
        share = "-" if row["share_of_tpot"] is None else f"{100 * row['share_of_tpot']:.1f} %"
        bound = "-" if row["bound_pct"] is None else f"{row['bound_pct']:.1f} %"
        lines.append(
            f"{row['tokens']:>7} {row['bytes']:>11,}  {row['algorithm']:<16} {row['us']:>10.3f} {row['ms_per_pass']:>10.3f} {share:>14} {bound:>8}"
        )
    lines.append("")
    lines += _conclusion(result)
    for phase in result["phases"]:
        if phase["bound_pct"] is not None:
            lines.append(f"{phase['phase']}: a communication flag can gain at most {phase['bound_pct']:.1f} % (over {phase['algorithm']}).")
        elif phase["pass_ms"] is None:
            lines.append(f"{phase['phase']}: no bound, since no pass of {phase['tokens']} rows has been measured on this node yet.")
    if not result["measured_here"]:
        lines.append("No cost was measured on this node (action=probe does): these figures may not leave an arm out.")
    return "\n".join(lines)


def _conclusion(result: Mapping[str, Any]) -> list[str]:
    one = {row["algorithm"]: row for row in result["rows"] if row["tokens"] == 1}
    plain = one[BANDWIDTH_ONLY]
    others = [row for name, row in one.items() if name != BANDWIDTH_ONLY]
    if not others or plain["ms_per_pass"] <= 0:
        return ["Bandwidth alone is counted; small messages pay latency, which is not in these figures."]
    slow, fast = max(others, key=lambda row: row["us"]), min(others, key=lambda row: row["us"])
    text = (
        f"For one token, bandwidth alone says {plain['ms_per_pass']:.3f} ms a pass; with latency it is {slow['ms_per_pass']:.2f} ms through "
        f"{slow['algorithm']}"
    )
    if fast is not slow:
        text += f" and {fast['ms_per_pass']:.2f} ms through {fast['algorithm']}"
    return [text + f": {slow['us'] / plain['us']:.0f} times the bandwidth-only figure. Latency decides, not bandwidth."]
