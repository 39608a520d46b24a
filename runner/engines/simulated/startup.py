"""The start before the port opens: arguments, distributed, weights, KV pool, graphs. Blocking, with the real one's log lines."""

import time
from collections.abc import Mapping
from typing import Any, NoReturn

from runner.engines.simulated.children import Children, orphan
from runner.engines.simulated.failures import RUN, Death, last_line
from runner.engines.simulated.launch import Launch
from runner.engines.simulated.log import Log
from runner.engines.simulated.ranks import Meeting

# share of the load time by stage; `bind` passes before the first line. `simulation.stage_share` puts others in their place.
SHARE = {"bind": 0.0, "distributed": 0.15, "weights": 0.4, "graphs": 0.3, "warmup": 0.15}


class Startup:
    """Runs the stages in order; `faults` of a stage strike in its middle."""

    def __init__(self, launch: Launch, log: Log, port: int) -> None:
        self._launch = launch
        self._log = log
        self._port = port
        self._children: Children | None = None
        self.meeting = Meeting(launch.order.get("ranks"))
        self.load_s = float(launch.simulation["load_s"]) * launch.factors.load
        self.share: Mapping[str, float] = {**dict.fromkeys(SHARE, 0.0), **(launch.simulation.get("stage_share") or SHARE)}
        self.seconds: dict[str, float] = {}

    def run(self) -> Children:
        """Returns the children when the port may open. A refused or faulty launch never returns."""
        launch, log = self._launch, self._log
        self._pause(self.load_s * self.share["bind"])
        self._lines("arguments")
        refusal = launch.decision.refusal
        if refusal is not None and refusal.stage == "arguments":
            Death(log, None, launch.version).by_argument(refusal)
        shown = {**launch.args, "model_path": model_path(launch), "host": "127.0.0.1", "port": self._port}
        if launch.version >= (0, 5, 20):
            log.line(f"server_args={dict(shown)!r}")
        else:
            log.line(f"server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in shown.items())})")
        log.line("Using default HuggingFace chat template with detected content format: string")
        if launch.fault("orphan") is not None:
            orphan()
        self._children = Children(max(1, launch.tp // self.meeting.count))
        if refusal is not None and not refusal.graph_capture:
            self._pause(self.load_s * self.share["distributed"] / 2)
            Death(log, self._children, launch.version).by_scheduler(refusal.frames, refusal.line)
        self._distributed()
        self._weights()
        self._pool()
        self._graphs()
        return self._children

    def _distributed(self) -> None:
        log = self._log
        log.every_rank("Init torch distributed begin.")
        if self._launch.tp > 1 and self._launch.node.capability:
            log.line("sglang is using nccl==2.28.9", 0)
        self.meeting.meet(self._pause)
        elapsed = self._stage("distributed")
        self._lines("distributed")
        log.every_rank(f"Init torch distributed ends. elapsed={elapsed:.2f} s, mem usage=1.01 GB")

    def _weights(self) -> None:
        launch, log = self._launch, self._log
        memory = launch.node.memory_gb or 20.0
        per_gpu = launch.model.weight_gb / max(1, launch.tp)
        log.every_rank(f"Load weight begin. avail mem={memory:.2f} GB")
        if launch.node.memory_gb and per_gpu > memory:
            Death(log, self._children, launch.version).by_scheduler(RUN, last_line("cuda_oom", "weights", memory))
        elapsed = self._stage("weights")
        kind = launch.model.architecture or "Qwen3ForCausalLM"
        log.every_rank(
            f"Load weight end. elapsed={elapsed:.2f} s, type={kind}, avail mem={memory - per_gpu:.2f} GB, mem usage={per_gpu:.2f} GB."
        )

    def _pool(self) -> None:
        launch, log = self._launch, self._log
        if launch.profiled_tokens <= 0:
            last = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
            Death(log, self._children, launch.version).by_scheduler(RUN, last)
        asked = launch.args.get("max_total_tokens")
        if asked and int(asked) > launch.profiled_tokens:
            log.every_rank(
                f"max_total_tokens={asked} is larger than the profiled value {launch.profiled_tokens}. Use the profiled value instead."
            )
        size = launch.limits.pool_tokens * launch.cost.costs.kv_bytes / 2e9
        log.every_rank(
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {launch.limits.pool_tokens}, K size: {size:.2f} GB, V size: {size:.2f} GB"
        )
        log.every_rank(f"Memory pool end. avail mem={self.free_gb:.2f} GB")

    @property
    def free_gb(self) -> float:
        """Memory of one GPU that is left after weights and KV pool."""
        launch = self._launch
        memory = launch.node.memory_gb or 20.0
        used = launch.model.weight_gb / max(1, launch.tp) + launch.limits.pool_tokens * launch.cost.costs.kv_bytes / 1e9
        return max(0.5, memory - used)

    def _graphs(self) -> None:
        launch, log = self._launch, self._log
        sizes = list(launch.decision.force.graph_sizes)
        new_words = launch.version >= (0, 5, 14)
        refusal = launch.decision.refusal
        if sizes:
            if new_words:
                log.every_rank(
                    f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs={launch.model.draft_tokens}, "
                    f"bs={sizes}, avail mem={self.free_gb:.2f} GB"
                )
            else:
                log.every_rank(f"Capture cuda graph begin. This can take up to several minutes. avail mem={self.free_gb:.2f} GB")
                log.line(f"Capture cuda graph bs {sizes}", 0)
        if refusal is not None and refusal.graph_capture:
            self._pause(self.load_s * self.share["graphs"] / 2)
            Death(log, self._children, launch.version).by_scheduler(refusal.frames, refusal.line)
        elapsed = self._stage("graphs")
        self._lines("graphs")
        if sizes and new_words:
            log.every_rank(
                f"Capture target decode CUDA graph end. elapsed={elapsed:.2f} s, mem usage=0.08 GB, avail mem={self.free_gb:.2f} GB."
            )
        elif sizes:
            log.every_rank(f"Capture cuda graph end. Time elapsed: {elapsed:.2f} s. mem usage=0.08 GB. avail mem={self.free_gb:.2f} GB.")
        unit = "gpu" if launch.node.capability else "cpu"
        log.line(
            f"max_total_num_tokens={launch.limits.pool_tokens}, chunked_prefill_size={launch.limits.chunk_tokens}, max_prefill_tokens=16384, "
            f"max_running_requests={launch.limits.max_running}, context_len={launch.model.max_context}, available_{unit}_mem={self.free_gb:.2f} GB",
            0,
        )

    def _stage(self, name: str) -> float:
        """Half of the stage's time, its faults, the other half; gives the seconds it took."""
        began = time.monotonic()
        half = self.load_s * self.share[name] / 2
        self._pause(half)
        self.strike(name)
        self._pause(half)
        self.seconds[name] = time.monotonic() - began
        return self.seconds[name]

    def strike(self, stage: str) -> None:
        """The faults of a stage. Returns when there are none."""
        launch, log = self._launch, self._log
        for fault in launch.faults:
            if fault.at != stage or fault.kind not in ("crash", "cuda_oom", "nccl_error", "os_oom", "hang"):
                continue
            if fault.kind == "hang":
                self._forever()
            death = Death(log, self._children, launch.version)
            if fault.kind == "os_oom":
                assert self._children is not None
                self._children.kill("scheduler_TP0" if launch.tp > 1 else "scheduler")
                self._pause(5.0)
            death.by_scheduler(RUN, last_line(fault.kind, stage, launch.node.memory_gb or 20.0))

    def _forever(self) -> NoReturn:
        while True:
            self._pause(3600.0)

    def _pause(self, seconds: float) -> None:
        """Sleeps, and watches the children meanwhile."""
        end = time.monotonic() + seconds
        while True:
            if self._children is not None:
                for name, _pid, code in self._children.poll():
                    if name.startswith("scheduler"):
                        Death(self._log, self._children, self._launch.version).scheduler_gone_at_start(code)
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.02))

    def _lines(self, stage: str) -> None:
        decision = self._launch.decision
        chosen = [*decision.lines, *(decision.debug_lines if self._log.debug else ())]
        # mscclpp tunes while graphs are captured; its debug lines carry the stage they belong to
        for when, rank, text in chosen:
            if when == stage:
                self._log.line(text, rank)


def model_path(launch: Launch) -> str:
    """Where the model is, or would be."""
    return launch.model.path or f"/models/{launch.model.name}"


def resolved_args(launch: Launch, port: int) -> Mapping[str, Any]:
    """The arguments as /server_info shows them: intent, not effect."""
    path = model_path(launch)
    return {
        **launch.args,
        "model_path": path,
        "tokenizer_path": path,
        "served_model_name": launch.args.get("served_model_name") or path,
        "host": "127.0.0.1",
        "port": port,
        "random_seed": launch.args.get("random_seed") or 100_000_000 + abs(hash((launch.order["launch_index"], 7))) % 800_000_000,
        "mem_fraction_static": launch.args.get("mem_fraction_static") or 0.86,
        "chunked_prefill_size": launch.limits.chunk_tokens,
        "page_size": launch.args.get("page_size") or 1,
        "attention_backend": launch.args.get("attention_backend") or "flashinfer",
    }
