"""States that no sentence names: stopping, hanging, compiling, killed from outside, serving. Here the context decides."""

import re

from runner.engines.diagnose import rules
from runner.engines.diagnose.facts import SILENT_S, STOP_DEADLINE_S, Facts
from runner.engines.diagnose.model import CLASSES, Diagnosis
from runner.engines.diagnose.reading import Line
from runner.engines.diagnose.rules import CONSEQUENCE
from runner.engines.diagnose.scan import Scan
from runner.engines.diagnose.symptoms import EXIT_CODE, PARENT_HINTS

# The engine prints one draining line every 5 s.
DRAIN_PERIOD_S = 5.0
KILLED = {-9, 137}
REFUSAL = re.compile(r"(?:ValueError|AssertionError|NotImplementedError|OSError|KeyError|RuntimeError|TypeError)\b")


def verdict(kind: str, confidence: float, line: Line | None = None, cause: str = "", remedy: str = "") -> Diagnosis:
    """A diagnosis with the class's own cause, remedy and retry unless better ones are given."""
    known = CLASSES[kind]
    return Diagnosis(
        kind=kind,
        confidence=confidence,
        line=line.raw[:2000] if line else "",
        cause=cause or known.cause,
        remedy=remedy or known.remedy,
        retry=known.retry,
    )


def stopping(found: Scan, facts: Facts) -> Diagnosis | None:
    """The server was asked to stop: it did, or it is stuck."""
    if found.stop is None and not facts.stop_asked:
        return None
    drained_s = len(found.drains) * DRAIN_PERIOD_S
    waited = max(facts.stopping_s or 0.0, drained_s, (facts.silent_s or 0.0) if found.stop is not None else 0.0)
    if facts.alive is True:
        if waited >= STOP_DEADLINE_S:
            return verdict("shutdown_stuck", 0.9, found.stop or _last(found))
        return verdict(
            "clean_shutdown", 0.4, found.stop, cause="the server was asked to stop and is still draining", remedy="wait for its deadline"
        )
    if found.stop is None:
        # Only the context says so; the log must at least not tell another story.
        return verdict("clean_shutdown", 0.55, _last(found)) if not found.hits and found.stages else None
    if facts.alive is None and facts.exit_code is None and waited >= STOP_DEADLINE_S and found.drains and found.drains[-1] > 0:
        return verdict("shutdown_stuck", 0.65, found.stop)
    return verdict("clean_shutdown", 0.88, found.stop)


def killed_for_memory(found: Scan, facts: Facts) -> Diagnosis | None:
    """dmesg says so, and no better reason is in the log."""
    if not facts.oom_killed or facts.alive is True:
        return None
    return verdict("os_oom_killer", 0.9, _consequence_line(found) or _last(found))


def hanging(found: Scan, facts: Facts) -> Diagnosis | None:
    """Alive, not serving, no error: compiling, waiting for other ranks, or hung. The log alone cannot tell."""
    if found.ready is not None or facts.health == 200 or facts.alive is not True:
        return None
    if any(hit.rule.role == CONSEQUENCE for hit in found.hits):
        return None
    silent, stage, last = facts.silent_s, found.stage or facts.stage, _last(found)
    # Whoever names a deadline that passed has already waited as long as that stage may take.
    patience = 0.0 if facts.overdue else SILENT_S
    compiling_line = next(
        (
            line
            for line in reversed(found.lines[-40:])
            if not line.frame and rules.COMPILING.search(line.text) and not rules.NOISE.search(line.text)
        ),
        None,
    )
    if facts.compiling is True:
        if facts.overdue.startswith("compile") or (silent is not None and silent >= facts.compile_deadline_s):
            return verdict("jit_compile_hang", 0.85, compiling_line or last)
        return verdict("still_compiling", 0.9, compiling_line or last)
    if silent is None:
        return None
    if compiling_line is not None and compiling_line.number >= (last.number if last else 0) - 3:
        if silent >= facts.compile_deadline_s:
            return verdict("jit_compile_hang", 0.8, compiling_line)
        if facts.compiling is False and silent >= patience:
            return verdict(
                "jit_compile_hang",
                0.75,
                compiling_line,
                cause="kernels should be compiling, but no compiler runs and the cache does not grow",
            )
        return verdict("still_compiling", 0.6, compiling_line)
    if stage == "distributed" and silent >= patience:
        return verdict("nccl_init_hang", 0.88, _line_of(found, "distributed"))
    if stage == "graphs" and silent >= patience:
        sure = facts.compiling is False or silent >= facts.compile_deadline_s
        return verdict("cuda_graph_capture_hang", 0.88 if sure else 0.65, _line_of(found, "graphs"))
    if stage in {"serving", "batches", "warmup"} and silent >= patience:
        return verdict("health_check_timeout", 0.5, last, cause="the port is open, but the warm-up does not end")
    if stage in {"pool", "pool_done", "weights_done"}:
        # Between the pool and the first graph workspaces and kernels are built: without a word for minutes on a cold cache.
        if silent >= facts.compile_deadline_s:
            if facts.compiling is False:
                return verdict("cuda_graph_capture_hang", 0.45, last)
            return verdict("jit_compile_hang", 0.6, last)
        if facts.compiling is None:
            return verdict("still_compiling", 0.6, last)
        return verdict("cuda_graph_capture_hang", 0.4, last) if silent >= patience else None
    return None


def child_exit(line: Line, found: Scan) -> Diagnosis | None:
    """What the exit code that the log itself prints for a child says, read with the stage it died in."""
    code = EXIT_CODE.search(line.text)
    if not code:
        return None
    value = int(code[1])
    if value in {-7, 135}:
        return verdict("bus_error", 0.85, line)
    served = found.has_served
    if value in KILLED and not served:
        if found.stage == "distributed":
            return verdict("nccl_init_hang", 0.45, line, cause="killed while the process group was being built, without an error")
        return verdict(
            "os_oom_killer",
            0.65 if "OOM" in line.text else 0.6 if found.stage == "weights" else 0.45,
            line,
            cause="the scheduler was killed (SIGKILL) without an error: most often the out-of-memory killer of the host",
        )
    if served:
        return verdict("scheduler_died", 0.6, line)
    return verdict("scheduler_init_crash", 0.5, line)


def consequence(found: Scan, facts: Facts) -> Diagnosis | None:
    """Only consequences are left: something failed and the log does not say what."""
    if facts.health == 200 and facts.alive is not False:
        return None
    hits = [hit for hit in found.hits if hit.rule.role == CONSEQUENCE and (found.ready is None or hit.line.number > found.ready)]
    if not hits:
        return None
    for hit in hits:
        if hit.rule.kind == "exit":
            judged = child_exit(hit.line, found)
            if judged is not None:
                return judged
    best = min(hits, key=lambda hit: (hit.rule.weight, hit.line.number))
    if found.stage == "distributed" and facts.exit_code in KILLED:
        return verdict(
            "nccl_init_hang", 0.45, _line_of(found, "distributed"), cause="ended while the process group was being built, without an error"
        )
    if best.rule.kind in {"killed", "warmup"}:
        return verdict("unknown", 0.2, best.line)
    if best.rule.kind == "fault" and _in_nccl(best.line, found):
        return verdict("nccl_error", 0.4, best.line, cause="a process crashed inside NCCL (the dump of its threads shows it)")
    served = found.has_served
    return verdict("scheduler_died" if served else "scheduler_init_crash", min(best.rule.confidence, 0.4), best.line)


def serving(found: Scan, facts: Facts) -> Diagnosis | None:
    """Ready, or alive and answering: healthy, with warnings, or degraded."""
    answering = facts.health == 200 and facts.alive is not False
    graphs_done = facts.silent_s is None and any(
        rules.STAGE_ORDER[stage] >= rules.STAGE_ORDER["graphs_done"] for stage in found.stages.values()
    )
    if facts.alive is False or (facts.exit_code is not None and facts.alive is not True):
        return None
    if facts.health is not None and facts.health != 200:
        return None if found.ready is None else verdict("health_check_timeout", 0.6, _last(found))
    starting = facts.alive is True and facts.silent_s is None and found.stage not in {"", "arguments"}
    if not (answering or found.ready is not None or graphs_done or starting):
        return None
    confidence = 0.95 if answering else 0.85 if found.ready is not None else 0.6 if facts.alive is True and graphs_done else 0.45
    if found.degraded is not None:
        return verdict("healthy_degraded", min(confidence, 0.85), found.degraded)
    if found.warning is not None:
        return verdict("healthy_with_warnings", confidence, found.warning)
    return verdict("healthy", confidence, _line_of(found, "ready"))


def nothing(found: Scan, facts: Facts) -> Diagnosis:
    """Unknown, and what would help to know."""
    if found.stage == "distributed" and facts.exit_code in KILLED:
        return verdict(
            "nccl_init_hang", 0.45, _line_of(found, "distributed"), cause="killed while the process group was being built, without an error"
        )
    where = f"the log ends in stage `{found.stage}` without an error" if found.stage else ""
    trace = next((trace for trace in found.traces if trace.exception is not None), None)
    if trace is not None and found.ready is None and REFUSAL.match(trace.exception.text if trace.exception else ""):
        for kind, pattern, confidence in PARENT_HINTS:
            if pattern.search(trace.frames):
                return verdict(kind, confidence, trace.exception)
    return verdict("unknown", 0.15, trace.exception if trace else _last(found), cause=where)


def _in_nccl(fault: Line, found: Scan) -> bool:
    """The innermost frames that Python's fault handler printed are NCCL's."""
    frames = [line.text for line in found.lines if line.frame and line.number > fault.number]
    return any(re.search(r"pynccl\w*\.py|\bin nccl[A-Z]", frame) for frame in frames[:3])


def _last(found: Scan) -> Line | None:
    return next((line for line in reversed(found.lines) if not line.frame), None)


def _consequence_line(found: Scan) -> Line | None:
    return next((hit.line for hit in found.hits if hit.rule.role == CONSEQUENCE), None)


def _line_of(found: Scan, stage: str) -> Line | None:
    pattern = dict(rules.STAGES)[stage]
    return next((line for line in reversed(found.lines) if not line.frame and pattern.search(line.text)), None)
