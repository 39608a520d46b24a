"""What a diagnosis is, and the failure classes with what is known about each."""

from typing import Any, Literal

from pydantic import Field

from runner.records.schema import Failure, RefusedAt
from runner.spec.base import Strict

Retry = Literal["no", "once", "at_once", "after_cleanup", "end_node"]


class FailureClass(Strict):
    """What every failure of one class has in common."""

    cause: str
    remedy: str
    retry: Retry = "no"


class Diagnosis(Strict):
    """Why a server is in the state that its log and the context show.

    `kind` is a key of `CLASSES`. `confidence`: 0.8 and more means an explicit sentence of the engine says so; under 0.5 the
    class is the best reading of thin evidence, and `unknown` never exceeds 0.2. `line` is the decisive line as it was logged.
    """

    kind: str
    confidence: float = Field(ge=0, le=1)
    line: str = ""
    cause: str = ""
    remedy: str = ""
    retry: Retry = "no"

    def failure(self, stage: str = "", exit_code: int | None = None, refused_at: RefusedAt | None = None) -> Failure:
        """The same as the failure of a launch record. A refusal of the engine itself is `refused_at` its start."""
        if refused_at is None and self.kind in REFUSALS:
            refused_at = "start"
        return Failure(
            kind=self.kind,
            confidence=self.confidence,
            line=self.line,
            cause=self.cause,
            remedy=self.remedy,
            retry="once" if self.retry == "no" and self._thin else self.retry,
            refused_at=refused_at,
            stage=stage,
            exit_code=exit_code,
        )

    @property
    def _thin(self) -> bool:
        """A guess must not close an arm at the first try: a kill from outside leaves no word either."""
        return self.confidence < SURE_ENOUGH.get(self.kind, 0.5)

    def json(self) -> dict[str, Any]:  # type: ignore[override]
        """The object that `action=diagnose` prints."""
        return {
            "class": self.kind,
            "confidence": round(self.confidence, 3),
            "line": self.line,
            "cause": self.cause,
            "remedy": self.remedy,
            "retry": self.retry,
        }


# From which confidence on a class closes an arm at the first try, where that is not 0.5. A scheduler that raised while it was built
# fails the same way again, also where no rule knows its sentence (0.45).
SURE_ENOUGH = {"os_oom_killer": 0.7, "scheduler_init_crash": 0.45}
HEALTHY = frozenset({"healthy", "healthy_with_warnings", "healthy_degraded"})
# Classes by which the engine refuses a cell for good: the same command on the same node will fail again with the same sentence.
REFUSALS = frozenset({"unknown_cli_option", "rejected_argument_combination", "unsupported_gpu_architecture"})

CLASSES: dict[str, FailureClass] = {
    "cuda_oom_weight_load": FailureClass(
        cause="GPU memory ran out while the weights were loaded or converted",
        remedy="more GPUs (--tp-size), a smaller or quantised checkpoint, or free the GPU; --mem-fraction-static does not help here",
    ),
    "kv_pool_too_small": FailureClass(
        cause="after the weights too little memory is left for the KV cache pool",
        remedy="more GPUs or a smaller footprint; raise --mem-fraction-static, lower --max-total-tokens, --context-length or the batch",
    ),
    "cuda_graph_capture_oom": FailureClass(
        cause="GPU memory ran out while CUDA graphs were captured",
        remedy="lower --mem-fraction-static, or capture fewer or smaller batch sizes (--cuda-graph-max-bs, ...-decode in newer versions)",
    ),
    "cuda_oom_serving": FailureClass(
        cause="GPU memory ran out while requests were served",
        remedy="lower --mem-fraction-static, --chunked-prefill-size or --max-running-requests",
    ),
    "os_oom_killer": FailureClass(
        cause="the operating system killed a process for host memory",
        remedy="more host RAM or a higher container limit, fewer loader threads, no CPU offload; look at dmesg",
    ),
    "gpu_memory_unbalanced": FailureClass(
        cause="some GPUs have far less free memory than the others: another process holds them",
        remedy="end the other process (nvidia-smi lists it) or wait for its teardown, then start again",
        retry="after_cleanup",
    ),
    "custom_allreduce_graph_capture": FailureClass(
        cause="the custom all-reduce could not register its buffers during CUDA graph capture",
        remedy="--disable-custom-all-reduce in every arm, or a topology with peer access",
    ),
    "cuda_graph_capture_hang": FailureClass(
        cause="CUDA graph capture began and made no progress, without compile activity",
        remedy="end the group; try --disable-custom-all-reduce or fewer batch sizes; keep a py-spy dump of all ranks",
        retry="once",
    ),
    "nccl_error": FailureClass(
        cause="a NCCL call failed",
        remedy="NCCL_DEBUG=INFO; check NCCL_SOCKET_IFNAME, the open port range, /dev/shm and peer access",
        retry="once",
    ),
    "nccl_timeout": FailureClass(
        cause="a collective did not finish within its time limit: some rank never came",
        remedy="find the rank that is behind or dead; raise --dist-timeout only when a slow load or compile explains it",
        retry="once",
    ),
    "nccl_init_hang": FailureClass(
        cause="the process group was never built: ranks wait for each other",
        remedy="end the group; check NCCL_P2P_DISABLE / IOMMU and ACS, NCCL_SOCKET_IFNAME, --nccl-port and --dist-init-addr",
        retry="once",
    ),
    "cuda_illegal_memory_access": FailureClass(
        cause="a kernel read or wrote memory that is not its own; the stack is usually not where the fault is",
        remedy="CUDA_LAUNCH_BLOCKING=1 to find the kernel; try another attention or MoE backend; check dmesg for Xid lines",
        retry="once",
    ),
    "invalid_device_ordinal": FailureClass(
        cause="a rank asked for a GPU that is not visible",
        remedy="make CUDA_VISIBLE_DEVICES list tp x pp GPUs (times dp), and check --base-gpu-id",
    ),
    "nan_outputs": FailureClass(
        cause="the model's logits contain NaN or infinity",
        remedy="check the checkpoint, the KV cache dtype and the quantised kernels of this architecture; compare with another backend",
    ),
    "watchdog_timeout": FailureClass(
        cause="the scheduler made no progress within --watchdog-timeout while work was pending",
        remedy="look at the py-spy dump for the rank that waits; raise --watchdog-timeout only where compiling or loading explains it",
        retry="once",
    ),
    "health_check_timeout": FailureClass(
        cause="the server is up but the detokenizer gave no answer to the health check in time",
        remedy="see whether the scheduler is busy or hung; do not poll /health under load; restart when it stays",
        retry="once",
    ),
    "detokenizer_died": FailureClass(
        cause="the detokenizer process ended, so no answer leaves the server",
        remedy="end the whole group (the parent may stay up for minutes) and start again; look for a kill from outside",
        retry="once",
    ),
    "scheduler_died": FailureClass(
        cause="a scheduler process died",
        remedy="read the first traceback of that rank; when there is none, look at dmesg and for a kill from outside",
        retry="once",
    ),
    "scheduler_init_crash": FailureClass(
        cause="a scheduler raised while it was being built",
        remedy="read the exception: the same command will most likely fail the same way",
    ),
    "bus_error": FailureClass(
        cause="a process got SIGBUS: a mapped file or shared memory could not be backed",
        remedy="a larger /dev/shm (--shm-size or --ipc=host), free disk space, an intact checkpoint",
    ),
    "warmup_blocked_by_proxy": FailureClass(
        cause="the server's own warm-up request went to an HTTP proxy",
        remedy="no_proxy=127.0.0.1,localhost (or unset http_proxy) for the server",
    ),
    "port_in_use": FailureClass(
        cause="another process holds a port that the server needs",
        remedy="end the other server or take another port; a ready line of this server may have come from the other one",
        retry="after_cleanup",
    ),
    "kernel_version_mismatch": FailureClass(
        cause="an installed kernel package does not fit this engine version, torch or the driver",
        remedy="install the versions that the engine pins (flashinfer, sgl-kernel, torch), or a driver that supports this CUDA",
    ),
    "toolchain_too_old": FailureClass(
        cause="the compiler or assembler on this machine does not know this GPU",
        remedy="a newer CUDA toolkit first on PATH (CUDA_HOME, TRITON_PTXAS_PATH) or a newer host compiler",
    ),
    "jit_compile_failed": FailureClass(
        cause="a kernel could not be compiled at run time",
        remedy="read the compiler's first error; clear a broken cache; check nvcc, ninja, headers and memory (MAX_JOBS)",
    ),
    "jit_compile_hang": FailureClass(
        cause="compiling did not end within its deadline",
        remedy="end the group, remove stale lock files of the compile cache, and compile once in a priming launch",
        retry="after_cleanup",
    ),
    "still_compiling": FailureClass(
        cause="the server is alive and compiling kernels",
        remedy="wait until the compile deadline; a priming launch fills the cache for the next ones",
    ),
    "unsupported_gpu_architecture": FailureClass(
        cause="a kernel does not exist for this GPU's compute capability",
        remedy="choose another backend for that operation; no flag makes this kernel exist",
    ),
    "unknown_cli_option": FailureClass(
        cause="this engine version does not know an option or a choice",
        remedy="use the option's name in this version (`python -m sglang.launch_server --help`)",
    ),
    "rejected_argument_combination": FailureClass(
        cause="the engine refuses this combination of arguments",
        remedy="change the combination as the engine's sentence says",
    ),
    "unsupported_model": FailureClass(
        cause="this engine version cannot serve the model's architecture",
        remedy="a newer engine (or transformers), or another checkpoint",
    ),
    "model_import_failed": FailureClass(
        cause="the model's files or the modules that it needs cannot be read or imported",
        remedy="check the path and the cache (offline?), install the missing module",
    ),
    "trust_remote_code": FailureClass(
        cause="the checkpoint brings its own code and the engine was not allowed to run it",
        remedy="--trust-remote-code, once the code was read",
    ),
    "quantization_error": FailureClass(
        cause="the checkpoint's quantisation does not fit the flags, the parallel size or the kernels",
        remedy="another tp size, the right --quantization, or a newer engine that leaves that layer unquantised",
    ),
    "healthy": FailureClass(cause="the server serves", remedy="none needed"),
    "healthy_with_warnings": FailureClass(cause="the server serves; its warnings are harmless", remedy="none needed"),
    "healthy_degraded": FailureClass(
        cause="the server serves, but worse than it could",
        remedy="treat its measurements with care: see the line",
    ),
    "clean_shutdown": FailureClass(
        cause="the server was asked to stop and did; older versions then kill themselves (137)", remedy="none needed"
    ),
    "shutdown_stuck": FailureClass(
        cause="the server was asked to stop and has not: it drains without a time limit or waits for a child",
        remedy="abort all requests, then SIGKILL the process group and wait until the GPU memory is free",
        retry="after_cleanup",
    ),
    "unknown": FailureClass(
        cause="nothing in the log or the context decides", remedy="read the log; give more context (exit_code, process_alive, ...)"
    ),
}
