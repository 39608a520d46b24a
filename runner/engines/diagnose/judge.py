"""Weighs the evidence: a root cause before a symptom, a symptom before a consequence, and what is known beside the log for the rest.

The order of lines is not the order of causes (the parent's sigquit line often comes before the child's traceback), a start that works
contains frightening words, a clean stop can exit with 137, and an exit code alone never decides.
"""

import re
from collections.abc import Mapping

from runner.engines.diagnose import rules, states
from runner.engines.diagnose.facts import Facts, read_facts
from runner.engines.diagnose.model import Diagnosis
from runner.engines.diagnose.reading import Line
from runner.engines.diagnose.rules import SYMPTOM
from runner.engines.diagnose.scan import Hit, Scan, roots, scan
from runner.engines.diagnose.states import verdict
from runner.engines.diagnose.symptoms import FRAME_HINTS

# Stages in which requests are served: the tail of a long log shows only its batches.
SERVING = {"serving", "batches", "ready"}
# A sentence that no rule knows: where the exception came from is certain, which class it belongs to is not.
CATCH_ALL = 0.45
# Roots this close (in lines) belong to one failure: its chain of exceptions and the same failure on other ranks.
NEAR = 120


def diagnose(text: str, context: Mapping[str, object] | None = None) -> Diagnosis:
    """The state of a server from its log and from `context` (see `facts.read_facts`). Never raises on odd input."""
    facts, found = read_facts(context), scan(text)
    return (
        _root(found, facts)
        or states.stopping(found, facts)
        or _symptom(found, facts)
        or states.killed_for_memory(found, facts)
        or states.hanging(found, facts)
        or states.consequence(found, facts)
        or states.serving(found, facts)
        or states.nothing(found, facts)
    )


def _root(found: Scan, facts: Facts) -> Diagnosis | None:
    candidates = [hit for hit in roots(found) if _counts(hit, found)]
    generic = _unknown_exception(found, candidates)
    if generic is not None:
        candidates = sorted([*candidates, generic], key=lambda hit: hit.line.number)
    if not candidates:
        return None
    anchor = candidates[0]
    near = [hit for hit in candidates if hit.line.number <= anchor.line.number + NEAR]
    best = min(near, key=lambda hit: (hit.rule.weight, hit.line.number))
    if facts.health == 200 and facts.alive is not False and best.rule.kind not in {"nan_outputs", "port_in_use"}:
        kind = "healthy_degraded" if best.line.number > (found.ready or 0) else "healthy_with_warnings"
        return verdict(kind, 0.6, best.line)
    return _explain(best, found, facts)


def _counts(hit: Hit, found: Scan) -> bool:
    """False for what the server survived (it became ready later) and for what happened while it was stopping."""
    if hit.rule.kind == "port_in_use":
        return True
    if found.ready is not None and hit.line.number < found.ready:
        return False
    return found.stop is None or hit.line.number < found.stop.number or "Shutting down" in found.stop.text


def _explain(hit: Hit, found: Scan, facts: Facts) -> Diagnosis:
    kind, confidence = hit.rule.kind, hit.rule.confidence
    if kind == "cuda_oom":
        return _out_of_memory(hit, found, facts)
    if kind == "unsupported_model":
        failed = _failed_import(hit.line.text, found)
        if failed is not None:
            return verdict(
                "model_import_failed",
                0.85,
                failed,
                cause="the module of this architecture could not be imported, so the engine does not know the model",
            )
    if kind == "warmup_blocked_by_proxy" and facts.proxy is not None:
        confidence = max(confidence, 0.85) if facts.proxy else min(confidence, 0.6)
    if kind == "generic":
        return _generic(hit, found)
    return verdict(kind, confidence, hit.line, hit.rule.cause, hit.rule.remedy)


def _out_of_memory(hit: Hit, found: Scan, facts: Facts) -> Diagnosis:
    """Which memory ran out: by the sentence, by the frames of the traceback, by the stage that the rank was in."""
    frames = "\n".join(trace.frames for trace in found.traces if trace.start <= hit.line.number <= trace.end + NEAR)
    stage, text = hit.stage, hit.line.text
    foreign = facts.gpu_foreign or bool(re.search(r"Process \d+ has [\d.]+ GiB memory in use", text))
    remedy = "another process holds memory of this GPU: end it (nvidia-smi), check CUDA_VISIBLE_DEVICES, start again" if foreign else ""

    def pool_too_large(confidence: float) -> Diagnosis:
        """The class is about the pool; here it was not refused as too small: the GPU ran out while it was made, so the remedy is the opposite."""
        cause = "GPU memory ran out while the KV cache pool was allocated: the pool asked for is larger than what is left"
        return verdict(
            "kv_pool_too_small", confidence, hit.line, cause=cause, remedy=remedy or "lower --mem-fraction-static or --max-total-tokens"
        )

    if re.search(r"[Cc]apture (?:cuda|CUDA) graph failed|CUDA graph", text) or re.search(
        r"cuda_graph_runner|CudaGraphRunner|in capture\b|capture_one_batch|init_cuda_graphs|init_device_graphs", frames
    ):
        return verdict("cuda_graph_capture_oom", 0.93, hit.line, remedy=remedy)
    if re.search(r"init_memory_pool|token_to_kv_pool|memory_pool\.py|_create_buffers|init_kv|alloc_memory_pool", frames):
        return pool_too_large(0.88)
    if re.search(r"load_model|create_weights|load_weights|process_weights_after_loading|model_loader|_initialize_model", frames):
        return verdict("cuda_oom_weight_load", 0.93, hit.line, remedy=remedy)
    if (
        re.search(r"event_loop|run_batch|forward_batch_generation|forward_thread_func|forward_extend|forward_decode", frames)
        or stage in SERVING
    ):
        return verdict("cuda_oom_serving", 0.85, hit.line, remedy=remedy)
    by_stage = {
        "weights": "cuda_oom_weight_load",
        "graphs": "cuda_graph_capture_oom",
        "pool_done": "cuda_graph_capture_oom",
    }
    if stage in ("weights_done", "pool"):
        return pool_too_large(0.75)
    if stage in by_stage:
        return verdict(by_stage[stage], 0.75, hit.line, remedy=remedy)
    return verdict("cuda_oom_weight_load", 0.45, hit.line, cause="GPU memory ran out; the log does not say at which stage", remedy=remedy)


def _failed_import(text: str, found: Scan) -> Line | None:
    """The line of an import that the engine ignored and that hides the model's architecture, if there is one."""
    names = re.findall(r"'([A-Z]\w+)'", text.partition("Supported")[0])
    for line in found.ignored_imports:
        module = re.search(r"sglang\.srt\.models\.(\w+)", line.text)
        if not module:
            continue
        stem = re.match(r"[a-z]+", module[1].replace("_", ""))
        for name in names:
            if stem and len(stem[0]) >= 3 and name.lower().startswith(stem[0]):
                return line
    return None


def _unknown_exception(found: Scan, candidates: list[Hit]) -> Hit | None:
    """The first exception of a scheduler that no rule knows, as a weak root."""
    known = {hit.line.number for hit in found.hits}
    headers = {
        line.number for line in found.lines if "Scheduler hit an exception" in line.text or "Exception in run_tp_server" in line.text
    }
    for position, trace in enumerate(found.traces):
        ours = trace.start in headers or (position > 0 and trace.chained) or "run_scheduler_process" in trace.frames
        line = trace.exception
        if not ours or line is None or line.number in known:
            continue
        hit = Hit(rules.rule("generic", ".", 0.6, 6), line, "", trace)
        if _counts(hit, found):
            return hit
    return None


def _generic(hit: Hit, found: Scan) -> Diagnosis:
    for first, second, sentence in rules.LATE_REJECTIONS:
        if re.search(first, found.commands) and re.search(second, found.commands):
            return verdict("rejected_argument_combination", 0.7, hit.line, cause=sentence)
    frames = hit.trace.frames if hit.trace else ""
    for kind, pattern, confidence in FRAME_HINTS:
        if pattern.search(f"{frames}\n{hit.line.text}"):
            return verdict(kind, confidence, hit.line)
    started = found.served is not None and found.served < hit.line.number
    building = "Scheduler(" in frames or "__init__" in frames
    if re.search(r"event_loop|process_batch_result|run_batch", frames) or (started and not building):
        return verdict("scheduler_died", CATCH_ALL, hit.line)
    return verdict("scheduler_init_crash", CATCH_ALL, hit.line)


def _symptom(found: Scan, facts: Facts) -> Diagnosis | None:
    hits = [hit for hit in found.hits if hit.rule.role == SYMPTOM and _counts(hit, found)]
    if not hits:
        return None
    best = min(hits, key=lambda hit: (hit.rule.weight, hit.line.number))
    kind, confidence = best.rule.kind, best.rule.confidence
    if kind == "health_check_timeout":
        fault = next((hit for hit in found.hits if hit.rule.kind == "fault" and hit.line.number < best.line.number), None)
        if fault is not None:
            return verdict("scheduler_died", 0.6, fault.line)
    if kind == "health_check_timeout" and facts.health == 200:
        return verdict("healthy_degraded", 0.7, best.line)
    if kind == "scheduler_died" and not found.has_served:
        if facts.oom_killed:
            return verdict("os_oom_killer", 0.9, best.line)
        return states.child_exit(best.line, found) or verdict("scheduler_init_crash", 0.5, best.line)
    if facts.oom_killed and kind in {"scheduler_died", "detokenizer_died"}:
        return verdict("os_oom_killer", 0.85, best.line)
    return verdict(kind, confidence, best.line)
