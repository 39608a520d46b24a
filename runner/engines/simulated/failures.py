"""How a simulated server dies: the words SGLang prints, then the exit it makes."""

import os
import signal
import sys

from runner.engines.simulated.children import Children
from runner.engines.simulated.in_force import Refusal
from runner.engines.simulated.log import Log
from runner.engines.simulated.shapes import Version

ROOT = "/opt/engine/sglang"
Frames = tuple[tuple[str, int, str], ...]
RUN: Frames = (
    ("srt/managers/scheduler.py", 4325, "run_scheduler_process"),
    ("srt/managers/scheduler.py", 414, "__init__"),
    ("srt/model_executor/model_runner.py", 912, "initialize"),
)
FORWARD: Frames = (
    ("srt/managers/scheduler.py", 4360, "run_scheduler_process"),
    ("srt/managers/scheduler.py", 1551, "event_loop_overlap"),
    ("srt/model_executor/model_runner.py", 3090, "forward"),
)
NCCL_LAST = "Last error:\nCuda failure 'peer access is not supported between these two devices'"


def traceback_text(frames: Frames, last: str) -> str:
    """A traceback in Python's form."""
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "{ROOT}/{path}", line {line}, in {name}' for path, line, name in frames]
    return "\n".join([*lines, last])


def last_line(kind: str, stage: str, memory_gb: float) -> str:
    """The exception of a fault, as its traceback ends."""
    if kind == "cuda_oom":
        text = (
            f"CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of {memory_gb / 1.0737:.2f} GiB of which "
            "412.00 MiB is free. Including non-PyTorch memory, this process has "
            f"{memory_gb / 1.0737 - 0.4:.2f} GiB memory in use. Of the allocated memory {memory_gb / 1.0737 - 2.1:.2f} GiB is allocated by PyTorch."
        )
        if stage == "graphs":
            return (
                f"Exception: Capture cuda graph failed: {text}\nPossible solutions:\n"
                "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
                "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
                "3. disable torch compile by not using --enable-torch-compile\n"
                "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
                "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose"
            )
        return f"torch.OutOfMemoryError: {text}"
    if kind == "nccl_error":
        return (
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
            f"ncclUnhandledCudaError: Call to CUDA function failed.\n{NCCL_LAST}"
        )
    return (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    )


class Death:
    """Ends this process as SGLang would. No method returns."""

    def __init__(self, log: Log, children: Children | None, version: Version) -> None:
        self._log = log
        self._children = children
        self._version = version

    def by_argument(self, refusal: Refusal) -> None:
        """The parent raises while it checks its arguments: exit code 1."""
        if self._version >= (0, 5, 14):
            self._log.line(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
        self._log.raw(traceback_text(refusal.frames, refusal.line) + "\n")
        self._end(1)

    def by_scheduler(self, frames: Frames, last: str, rank: int = 0, running: bool = False) -> None:
        """A scheduler raises: it prints, signals its parent, and the parent kills the tree and itself."""
        self._log.line(f"Scheduler hit an exception: {traceback_text(frames, last)}\n", rank)
        if running:
            self._log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        else:
            self._log.line("Received sigquit from a child process. It usually means the child failed.")
        self.by_kill()

    def by_kill(self) -> None:
        """kill_process_tree with the parent: exit code -9."""
        if self._version >= (0, 5, 14):
            self._log.line(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        if self._children is not None:
            self._children.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    def scheduler_gone_at_start(self, exit_code: int) -> None:
        """A scheduler was killed from outside (the OS's OOM killer, say) before the server was ready: the parent raises."""
        if self._version >= (0, 5, 20):
            last = (
                f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {exit_code}). "
                "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
            )
        elif self._version >= (0, 5, 10):
            last = f"RuntimeError: Rank 0 scheduler died (exit code: {exit_code})"
        else:
            self._log.line("Rank 0 scheduler is dead. Please check if there are relevant logs.")
            self._log.line(f"Exit code: {exit_code}")
            last = "EOFError"
        frames = (
            ("launch_server.py", 51, "run_server"),
            ("srt/entrypoints/http_server.py", 2509, "launch_server"),
            ("srt/entrypoints/engine.py", 844, "_wait_for_scheduler_ready"),
        )
        self._log.raw(traceback_text(frames, last) + "\n")
        self._end(1)

    def clean(self) -> None:
        """The end of a graceful stop: up to 0.5.19 the server kills itself too, later it exits with 0."""
        if self._version < (0, 5, 20):
            self.by_kill()
        self._log.line(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
        self._end(0)

    def _end(self, code: int) -> None:
        if self._children is not None:
            self._children.kill()
        sys.stdout.flush()
        os._exit(code)
