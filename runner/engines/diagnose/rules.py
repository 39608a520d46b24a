"""Rules are data: which sentence speaks for which class, and how strongly. `judge.py` weighs them."""

import re
from typing import NamedTuple

ROOT, SYMPTOM, CONSEQUENCE = 1, 2, 3


class Rule(NamedTuple):
    """`pattern` is searched in one line. `role`: a ROOT explains the others, a SYMPTOM explains CONSEQUENCEs only.

    `weight` orders roots that are close to each other (one traceback and its chain): smaller is more specific.
    `frames` must be found in the traceback that the line ends, or (`or_near`) nothing else is asked. `stages`: the rule holds only
    when the rank was in one of them.
    """

    kind: str
    pattern: re.Pattern[str]
    confidence: float = 0.9
    weight: int = 5
    role: int = ROOT
    frames: re.Pattern[str] | None = None
    stages: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""


def rule(
    kind: str,
    pattern: str,
    confidence: float = 0.9,
    weight: int = 5,
    role: int = ROOT,
    frames: str | None = None,
    stages: tuple[str, ...] = (),
    cause: str = "",
    remedy: str = "",
) -> Rule:
    """A rule with its expressions compiled."""
    return Rule(kind, re.compile(pattern), confidence, weight, role, re.compile(frames) if frames else None, stages, cause, remedy)


# Stages of a start in their order; the last line of each that a rank logged says how far it came.
STAGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("arguments", re.compile(r"^server_args=")),
    ("distributed", re.compile(r"Init (?:torch distributed|parallel) begin")),
    ("distributed_done", re.compile(r"Init (?:torch distributed|parallel) ends")),
    ("weights", re.compile(r"Load weight begin|Loading safetensors checkpoint shards|Multi-thread loading shards|Loading pt checkpoint")),
    ("weights_done", re.compile(r"Load weight end")),
    ("pool", re.compile(r"KV Cache is allocated|Mamba Cache is allocated|Use the profiled value instead")),
    ("pool_done", re.compile(r"Memory pool end")),
    (
        "graphs",
        re.compile(
            r"Capture .*(?:cuda|CUDA|cpu) graph begin|Capture cuda graph bs|Capture cuda graph num tokens|Registering \d+ cuda graph addresses|Capturing (?:batches|num tokens)|Compiling num tokens"
        ),
    ),
    ("graphs_done", re.compile(r"Capture .*(?:cuda|CUDA|cpu) graph end|max_total_num_tokens=\d+")),
    ("serving", re.compile(r"Uvicorn running on|Application startup complete|Started server process")),
    ("batches", re.compile(r"^(?:Prefill|Decode) batch[,.]")),
    ("ready", re.compile(r"The server is fired up and ready to roll")),
)
STAGE_ORDER = {name: order for order, (name, _) in enumerate(STAGES)}

# Lines that contain frightening words and mean nothing. They are taken out before any cause is looked for.
NOISE = re.compile(
    r"""(?x)
      ^server_args= | ServerArgs\( | ^\$\s | ^(?:\+\ )?(?:\S*/)?(?:python3?|sglang)\ (?:-m\ sglang|serve)(?!.*error:) | launch_command
    | (?:User|Future|Deprecation|Runtime|FastAPIDeprecation|Syntax|Pydantic\w*|Resource|Import)Warning:
    | Ignore\ import\ error\ when\ loading | Silent\ incorrectness\ is\ only
    | Config\ file\ not\ found\ at | Using\ default\ MoE\ kernel\ config | Performance\ might\ be\ sub-optimal
    | nanobind: | leaked\ (?:instance|type|function) | destroy_process_group\(\)\ was\ not\ called
    | Fail\ to\ set\ RLIMIT | kill_process_tree\ called | resource_tracker
    | is\ deprecated\ and\ will\ be\ removed | DeprecationWarning | still\ supported,\ but
    | Possible\ solutions: | ^\d\.\ (?:set|disable|use|reduce)\b | Open\ an\ issue\ on\ GitHub
    | To\ silence\ this\ warning | CUDA\ kernel\ errors\ might\ be | For\ debugging\ consider\ passing\ CUDA_LAUNCH | Compile\ with\ `TORCH_USE_CUDA_DSA
    | Custom\ ?[Aa]ll-?[Rr]educe\w*\ is\ disabled\ because | TorchSymmMemCommunicator: | multimem\ all-gather\ disabled
    | Disable\ prefill\ CUDA\ graph\ because | Cuda\ graph\ is\ disabled\ because
    | Loaded\ tokenizer | with\ --trust-remote-code\.\ Model-specific | py-?spy | coredump
    | NCCL\ INFO\ (?!.*->\ \d) | NET/Plugin | Could\ not\ find:\ lib | OMP:\ (?:Warning|Info)
    | \[Gloo\]\ Rank | Using\ network | Setting\ OMP_NUM_THREADS | Retrying\ in\ \d+s | thrown\ while\ requesting\ HEAD
    """
)

# Sentences that look worrying in a server that serves; they make `healthy_with_warnings` of `healthy`.
WARNINGS = re.compile(
    r"""(?x)
      Warning\b | \bWARN(?:ING)?\b | is\ deprecated | Config\ file\ not\ found | sub-optimal | Ignore\ import\ error | Silent\ incorrectness
    | is\ disabled\ because | 500\ Internal\ Server | falling\ back | [Ff]ailed\ to | not\ available | not\ supported | unavailable | Fail\ to\ set | NCCL\ WARN | not\ found
    """
)
DEGRADED = re.compile(
    r"KV cache pool is full|Retract requests|retracted|Health check failed|Disabling flashinfer allreduce fusion permanently"
    r"|[Cc]uda graph (?:capture )?(?:failed|is disabled due to)|out of memory"
)
STOP_ASKED = re.compile(
    r"SIGTERM received|Signal SIGTERM received|Gracefully exiting\.\.\.|^INFO: +Shutting down|^INFO: +Finished server process|Received signal (?:15|SIGTERM)"
    r"|KeyboardInterrupt|Received SIGINT|received signal 15|Stopping container|ShutdownReq"
)
DRAINING = re.compile(r"Gracefully exiting\.\.\. Remaining number of requests (\d+)")
COMPILING = re.compile(
    r"(?i)\bjit\b.*(?:load|compil|build|op)|loading jit|jit backend|prebuilt kernels not found|compiling|autotun|ninja|\bnvcc\b|DeepGEMM.*(?:warm|JIT|compil)|try DeepGEMM warmup"
    r"|building extension|torch\.compile|warming up .*kernel|cubin"
)

# Combinations that the engine documents as unsupported but fails on only later, with an error that does not name them.
LATE_REJECTIONS: tuple[tuple[str, str, str], ...] = (
    (
        r"speculative[-_]algo(?:rithm)?[ =]'?NGRAM",
        r"attention[-_]backend[ =]'?torch_native",
        "NGRAM speculation does not work with torch_native attention",
    ),
)

# No rule, stage or warning speaks in a line without one of these words (lower case): such lines are passed over unread.
TRIGGERS: tuple[str, ...] = (
    "error", "fail", "exception", "exit", "kill", "oom", "memory", "nan", "nccl", "port", "addr", "version", "support", "sm_", "cuda",
    "bus", "sig", "scheduler", "detokenizer", "watchdog", "health", "trust", "prox", "squid", "response [", "fatal", "cannot", "can't",
    "custom_all", "register", "ptxas", "ninja", "nvcc", "no such", "import", "quant", "arch", "capab", "time", "closed", "broken",
    "abort", "dumped", "warm", "assert", "profile", "space", "ordinal", "gpu", "device", "require", "begin", "end", "ready", "alloc",
    "uvicorn", "startup", "started", "batch", "captur", "load", "max_total", "server_args", "compil", "jit", "shutting", "finished",
    "interrupt", "warn", "deprecated", "config", "disabled", "falling", "not available", "unavailable", "not found", "retract",
    "sglang", "python", "model", "segmentation", "recv", "send", "peer", "header", "unknown", "illegal", "misaligned", "collective",
)  # fmt: skip
