"""Symptoms (they name a state, a root may explain it) and consequences (they only say that something else failed)."""

import re

from runner.engines.diagnose.rules import CONSEQUENCE, SYMPTOM, Rule, rule

SYMPTOMS: tuple[Rule, ...] = (
    rule(
        "nccl_timeout",
        r"Watchdog caught collective operation timeout|watchdog got stuck for \d+ seconds|[Cc]ollective .*timed out|Timed out waiting \d+ms for (?:recv|send|barrier)",
        0.75,
        role=SYMPTOM,
    ),
    rule(
        "nccl_timeout",
        r"Wait timeout for|monitored barrier.*timed? ?out|ranks? .* failed to pass monitoredBarrier|NCCL.*[Tt]imeout",
        0.7,
        role=SYMPTOM,
    ),
    rule(
        "nccl_init_hang",
        r"Timed out after \d+ seconds waiting for clients|client socket has timed out after|wait timeout after \d+ms, keys|Store.*[Tt]imed? ?out|DistStoreError|DistNetworkError: .*timed out",
        0.78,
        role=SYMPTOM,
    ),
    rule(
        "watchdog_timeout", r"(?:[Ss]cheduler |[Tt]okenizer |[Dd]etokenizer )?[Ww]atchdog timeout(?!.*self\.soft=True)", 0.9, role=SYMPTOM
    ),
    rule("nccl_error", r"NCCL communicator was aborted|ncclRemoteError", 0.5, role=SYMPTOM),
    rule(
        "nccl_error",
        r"NCCL error: .*remote process exited|NET/IB ?: ?Got completion .*status=[1-9]",
        0.48,
        weight=6,
        role=SYMPTOM,
    ),
    rule("nccl_timeout", r"NCCL operations have failed or timed out", 0.48, weight=6, role=SYMPTOM),
    rule("health_check_timeout", r"Health check failed", 0.85, weight=9, role=SYMPTOM),
    rule(
        "detokenizer_died",
        r"DetokenizerManager hit an exception|Subprocess (?:sglang::)?detokenizer\S* .*crashed|[Dd]etokenizer (?:process )?(?:is dead|died|exited|crashed)|Subprocess detokenizer",
        0.93,
        weight=1,
        role=SYMPTOM,
    ),
    rule(
        "scheduler_died",
        r"Subprocess (?:sglang::)?scheduler\S* .*crashed|Scheduler(?: process)? (?:\d+ )?(?:died|exited|crashed) unexpectedly|[Ss]cheduler .*terminated with -?\d+",
        0.8,
        role=SYMPTOM,
    ),
)

CONSEQUENCES: tuple[Rule, ...] = (
    rule("exit", r"scheduler is dead|died during initialization|Exit code: -?\d+|exit code:? -\d+", 0.5, weight=1, role=CONSEQUENCE),
    rule(
        "peer",
        r"Connection closed by peer|Broken pipe|Connection reset by peer|recvValue failed|sendBytes failed|remote process exit|ncclRemoteError|failed to recv, got 0 bytes|heartbeat monitor",
        0.35,
        weight=3,
        role=CONSEQUENCE,
    ),
    rule(
        "child",
        r"[Rr]eceived sigquit from a child|SIGQUIT received|child failed|TokenizerManager hit an exception|DataParallelController hit an exception",
        0.4,
        weight=2,
        role=CONSEQUENCE,
    ),
    rule(
        "killed",
        r"^Killed\s*$|\bKilled +(?:python|sglang)",
        0.3,
        weight=2,
        role=CONSEQUENCE,
    ),
    rule("fault", r"Fatal Python error|Segmentation fault|core dumped|Aborted\b", 0.4, weight=2, role=CONSEQUENCE),
    rule("warmup", r"Initialization failed\. warmup error", 0.35, weight=4, role=CONSEQUENCE),
)
EXIT_CODE = re.compile(r"[Ee]xit code:? (-?\d+)")

# For an exception whose sentence no rule knows: what the frames of its traceback say about where it came from.
FRAME_HINTS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    (
        "jit_compile_failed",
        re.compile(
            r"(?i:deep_?gemm\S*/jit/)|flashinfer/jit/(?:core|cpp_ext)\.py|torch/utils/cpp_extension\.py|_inductor/|triton/compiler/|deep_gemm/jit|tilelang/jit|tvm_ffi/cpp"
        ),
        0.6,
    ),
    (
        "quantization_error",
        re.compile(
            r"layers/quantization/\S*, line \d+, in (?:create_weights|process_weights_after_loading|get_quant_method|__init__|from_config)"
        ),
        0.6,
    ),
    ("unsupported_model", re.compile(r"models/registry\.py|model_loader/utils\.py.*get_model_architecture"), 0.55),
    (
        "model_import_failed",
        re.compile(
            r"in load_weights\b|model_loader/(?:loader|weight_utils)\.py.*in (?:_?load|get|_prepare|download)\w*[^$]*\Z|hf_transformers_utils|tokenization_\w+\.py"
        ),
        0.5,
    ),
)
# The same for a traceback of the parent, before it has children: it comes from its arguments or from reading the model's files.
PARENT_HINTS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("rejected_argument_combination", re.compile(r"sglang/srt/(?:server_args|arg_groups|configs/model_config)"), 0.55),
    (
        "model_import_failed",
        re.compile(r"site-packages/(?:transformers|huggingface_hub|safetensors|tokenizers)/|hf_transformers_utils"),
        0.5,
    ),
)
