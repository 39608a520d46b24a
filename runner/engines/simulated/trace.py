"""/start_profile and /stop_profile: a small Chrome trace with the kernels that are really in force, and no others."""

import json
import time
from pathlib import Path
from typing import Any

from runner.engines.simulated.launch import Launch
from runner.engines.simulated.scheduler import Step

KERNELS = {
    "mscclpp": "void mscclpp::allreduce_LL_1node_kernel<__nv_bfloat16>(mscclpp::DeviceHandle<mscclpp::MemoryChannel>*, void*, void*, void*, int, int)",
    "fusion": "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>",
    "custom": "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*, sglang::RankSignals, sglang::Signal*, __nv_bfloat16*, int, int)",
    "pcie_ipc": "void flashinfer::pcie_ipc::allreduce_oneshot_kernel<__nv_bfloat16, 8>(flashinfer::pcie_ipc::Params)",
}
OTHERS = ("void fused_moe_kernel", "void flashinfer::BatchDecodeWithPagedKVCacheKernel", "nvjet_tst_128x64_64x8_1x2_h_bz_TNT")
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>"
LAYERS_SHOWN = 4
NCCL_LL_BYTES = 1 << 20  # NCCL's own choice turns from LL to another protocol about here


class Recorder:
    """Collects passes while a profile runs."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._folder = Path("/tmp")  # noqa: S108 - SGLang's own default
        self._steps_left: int | None = None
        self._events: list[dict[str, Any]] = []
        self.active = False
        self._id = ""

    def start(self, body: dict[str, Any]) -> str:
        """SGLang's parameters: output_dir, num_steps. Gives the folder."""
        self._folder = Path(body.get("output_dir") or "/tmp")  # noqa: S108
        steps = body.get("num_steps")
        self._steps_left = int(steps) if steps else None
        self._events = []
        self._id = str(time.time())
        self.active = True
        return str(self._folder)

    def step(self, step: Step, end: float, scale: float) -> None:
        """One pass, with a few of its layers."""
        cost = self._launch.cost
        rows = step.running * cost.model.draft_tokens if step.kind == "decode" else step.new_tokens
        algorithm = cost.algorithm(rows, step.graph)
        begin = (end - step.seconds * scale) * 1e6
        share = step.seconds * scale * 1e6 / LAYERS_SHOWN / (2 * len(OTHERS) + 2)
        at = begin
        for _layer in range(LAYERS_SHOWN):
            names = [OTHERS[0], OTHERS[1]]
            if cost.force.tp > 1:
                names.append(self._all_reduce(algorithm, rows))
            if algorithm != "fusion":
                names.append(NORM)
            names.append(OTHERS[2])
            for name in names:
                self._events.append(
                    {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": share, "args": {"stream": 7}}
                )
                at += share
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self.stop()

    def _all_reduce(self, algorithm: str, rows: int) -> str:
        """The kernel's name; NCCL's tells its algorithm and protocol."""
        if algorithm in KERNELS:
            return KERNELS[algorithm]
        force, model = self._launch.decision.force, self._launch.model
        small = rows * model.hidden * model.dtype_bytes <= NCCL_LL_BYTES
        protocol = force.nccl_protocol or ("ll" if small else "simple")
        return f"ncclDevKernel_AllReduce_Sum_bf16_{(force.nccl_algorithm or 'ring').upper()}_{protocol.upper()}(ncclDevKernelArgsStorage<4096ul>)"

    def stop(self) -> list[Path]:
        """Writes one trace (rank 0) and gives its path; [] when nothing ran."""
        import gzip

        if not self.active:
            return []
        self.active = False
        self._folder.mkdir(parents=True, exist_ok=True)
        suffix = "-TP-0.trace.json.gz" if self._launch.tp > 1 else ".trace.json.gz"
        path = self._folder / f"{self._id}{suffix}"
        text = json.dumps({"schemaVersion": 1, "simulated": True, "traceEvents": self._events})
        path.write_bytes(gzip.compress(text.encode(), 1))
        return [path]
