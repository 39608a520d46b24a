"""What a forward pass costs: pure functions, seconds. Assumed numbers, none measured here except where a source is named.

A pass takes
    max(bytes read / memory bandwidth, operations / speed) + layers * launch cost + all-reduces + a fixed part.
Bytes read: weights touched by the batch (a mixture of experts touches more of them the larger the batch) and the KV cache.
All-reduces: alpha + 2(N-1)/N * bytes / bandwidth per call, `all_reduces_per_layer * layers` calls.

NCCL on 8 x SM120 over PCIe: 205 us for 12 KiB launched one by one (published with SGLang's PCIe-IPC all-reduce, with TPOT 21.1 ms
going to 13.6 ms when 156 of them fell to 5.3 us inside CUDA graphs: so about 53 us each there). The defaults give GLM-5 at tp 8 a
TPOT of about 20 ms at batch 1. Every constant can be replaced by `simulation.compute` (keys are the fields of Costs, or
`alpha_us.ALGORITHM` and `gb_s.ALGORITHM`); a node file's `all_reduce` goes over the defaults by algorithm name."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from runner.engines.simulated.fusion import FUSION_ROWS
from runner.engines.simulated.in_force import Force
from runner.engines.simulated.shapes import Model, Node

MEMORY_GB_S = {"RTX PRO 6000": 1792.0, "RTX 5090": 1792.0, "H200": 4800.0, "H100": 3350.0, "B200": 8000.0}
CUSTOM_MAX_BYTES = 8 << 20
MSCCLPP_MODULE_MAX_BYTES = 8 << 20


@dataclass(frozen=True)
class Costs:
    """Constants of one model on one node. Bandwidths in 1e9 B/s of one GPU, `tflops` effective in prefill."""

    memory_gb_s: float
    tflops: float
    layer_graph_us: float
    layer_eager_us: float
    step_us: float = 900.0
    prefill_step_us: float = 4000.0
    serial_schedule_us: float = 1100.0
    expert_spread: float = 0.8
    kv_bytes: float = 1e5
    fused_norm_us: float = 2.0
    fused_prefill_norm_us: float = 6.0
    shared_fusion_pct: float = 1.0
    mscclpp_one_shot_alpha_us: float = 16.0
    mscclpp_two_shot_alpha_us: float = 28.0
    # modules of the engine's environment: 1 importable
    importable_mscclpp: float = 0.0
    importable_flashinfer_comm: float = 1.0


# algorithm -> (alpha us, bus GB/s) for GPUs joined by PCIe, and by NVLink
PCIE = {
    "nccl": (205.0, 40.0),
    "nccl_graph": (53.0, 45.0),
    "mscclpp": (16.0, 45.0),
    "fusion": (44.0, 45.0),
    "custom": (14.0, 45.0),
    "pcie_ipc": (5.3, 40.0),
}
NVLINK = {
    "nccl": (28.0, 360.0),
    "nccl_graph": (14.0, 380.0),
    "mscclpp": (6.0, 380.0),
    "fusion": (6.5, 380.0),
    "custom": (6.0, 380.0),
    "pcie_ipc": (5.3, 40.0),
}


@dataclass(frozen=True)
class CostModel:
    """Times of one arm on one node. `decode_factor` and `prefill_factor` hold the extra true effects of the configuration."""

    model: Model
    node: Node
    force: Force
    costs: Costs
    reduce: Mapping[str, tuple[float, float]]
    decode_factor: float = 1.0
    prefill_factor: float = 1.0

    def decode_s(self, batch: int, context: int) -> float:
        """One decode step: `batch` requests that hold `context` tokens together."""
        graph = batch <= self.force.graph_rows
        rows = self.force.padded(batch) * self.model.draft_tokens
        gpus = max(1, self.force.tp)
        read = self._weights_read(batch * self.model.draft_tokens) / gpus + context * self._kv_bytes()
        memory = read / (self.costs.memory_gb_s * 1e9)
        compute = 2e9 * self.model.active_b * rows / gpus / (self.costs.tflops * 1e12)
        layer_us = self.costs.layer_graph_us if graph else self.costs.layer_eager_us
        if self.force.shared_experts_fused:
            layer_us *= 1 - self.costs.shared_fusion_pct / 100
        total = max(memory, compute) + (self.model.layers * layer_us + self.costs.step_us) * 1e-6
        if not self.force.overlap_schedule:
            total += self.costs.serial_schedule_us * 1e-6
        return (total + self._communication_s(rows, graph, decode=True)) * self.decode_factor

    def prefill_s(self, tokens: int, context: int) -> float:
        """One prefill pass over `tokens` new tokens (eager), with `context` tokens of earlier chunks and prefixes."""
        gpus = max(1, self.force.tp)
        memory = (self._weights_read(tokens) / gpus + context * self._kv_bytes()) / (self.costs.memory_gb_s * 1e9)
        compute = 2e9 * self.model.active_b * tokens / gpus / (self.costs.tflops * 1e12)
        total = max(memory, compute) + (self.model.layers * self.costs.layer_eager_us + self.costs.prefill_step_us) * 1e-6
        return (total + self._communication_s(tokens, graph=False, decode=False)) * self.prefill_factor

    def algorithm(self, rows: int, graph: bool) -> str:
        """Which all-reduce carries `rows` rows in this process."""
        size = rows * self.model.hidden * self.model.dtype_bytes
        force = self.force
        if force.fusion and rows <= FUSION_ROWS:
            return "fusion"
        if force.mscclpp_module and size <= MSCCLPP_MODULE_MAX_BYTES:
            return "mscclpp"
        if force.custom and size <= CUSTOM_MAX_BYTES:
            return "custom"
        if force.pcie_ipc and rows <= max(1, force.graph_rows) * self.model.draft_tokens:
            return "pcie_ipc"
        if graph and size <= force.mscclpp_legacy_bytes:
            return "mscclpp"
        return "nccl_graph" if graph else "nccl"

    def all_reduce_us(self, algorithm: str, size: int) -> float:
        """One call over `size` bytes, us. mscclpp is tuned at the start: the better of its one-shot and two-shot forms."""
        ranks = self.force.tp
        alpha, gb_s = self.reduce[algorithm]
        ring = alpha + 2 * (ranks - 1) / ranks * size / (gb_s * 1e3)
        if algorithm != "mscclpp":
            return ring
        one_shot = alpha + (ranks - 1) * size / (gb_s * 1e3)
        return min(one_shot, ring + self.costs.mscclpp_two_shot_alpha_us - self.costs.mscclpp_one_shot_alpha_us)

    def _communication_s(self, rows: int, graph: bool, decode: bool) -> float:
        if self.force.tp < 2:
            return 0.0
        calls = self.model.layers * self.model.all_reduces_per_layer
        algorithm = self.algorithm(rows, graph)
        one = self.all_reduce_us(algorithm, rows * self.model.hidden * self.model.dtype_bytes)
        if algorithm == "fusion":
            # the last layer's all-reduce is not fused; norm and residual kernels of the others go away
            plain = replace_fusion(self).all_reduce_us_for(rows, graph)
            saved = self.costs.fused_norm_us if decode else self.costs.fused_prefill_norm_us
            return ((calls - 1) * (one - saved) + plain) * 1e-6
        return calls * one * 1e-6

    def all_reduce_us_for(self, rows: int, graph: bool) -> float:
        """One call over `rows` rows by the algorithm that carries them, us."""
        return self.all_reduce_us(self.algorithm(rows, graph), rows * self.model.hidden * self.model.dtype_bytes)

    def _weights_read(self, rows: int) -> float:
        """Bytes of weights that `rows` rows touch, over all GPUs: all of a dense model, some experts of a mixture."""
        active = self.model.active_b * 1e9 * self.model.weight_bits / 8
        whole = max(self.model.weight_gb * 1e9, active)
        if not self.model.experts or whole <= active:
            return active
        return float(whole * (1 - (1 - active / whole) ** (max(1, rows) ** self.costs.expert_spread)))

    def _kv_bytes(self) -> float:
        return self.costs.kv_bytes


def replace_fusion(cost: CostModel) -> CostModel:
    """The same without fusion."""
    return replace(cost, force=replace(cost.force, fusion=False))


def cost_model(
    model: Model,
    node: Node,
    force: Force,
    overrides: Mapping[str, float],
    effects: Mapping[str, Mapping[str, float]],
    levels: Mapping[str, str],
) -> CostModel:
    """Defaults by node, then the node's own all-reduce costs, then `overrides`; `effects` of the levels that `levels` has."""
    names = {item.name for item in fields(Costs)}
    unknown = unknown_overrides(overrides)
    if unknown:
        raise ValueError(unknown)
    costs = replace(default_costs(model, node), **{key: value for key, value in overrides.items() if key in names})
    reduce = dict(NVLINK if node.fast_link else PCIE) | dict(node.all_reduce)
    for key, value in overrides.items():
        what, _, algorithm = key.partition(".")
        alpha, gb_s = reduce.get(algorithm, (10.0, 50.0))
        if what == "alpha_us":
            reduce[algorithm] = (value, gb_s)
        elif what == "gb_s":
            reduce[algorithm] = (alpha, value)
    for name in ("nccl", "nccl_graph"):
        reduce[name] = forced_nccl(force, *reduce[name])
    decode, prefill = factors(effects, levels)
    return CostModel(model, node, force, costs, reduce, decode, prefill)


# what forcing NCCL costs or gives: factors on alpha and on bandwidth (assumed; its own choice is a ring, LL when small)
NCCL_ALGORITHM = {"tree": (0.8, 0.85)}
NCCL_PROTOCOL = {"ll": (1.0, 0.5), "ll128": (1.1, 0.9), "simple": (1.7, 1.0)}
NCCL_CHANNELS = {1: 0.4, 2: 0.6, 4: 0.85}


def forced_nccl(force: Force, alpha: float, gb_s: float) -> tuple[float, float]:
    """NCCL's (alpha, bandwidth) under the algorithm, protocol and channels that its variables force on it."""
    for alpha_factor, speed in (NCCL_ALGORITHM.get(force.nccl_algorithm, (1.0, 1.0)), NCCL_PROTOCOL.get(force.nccl_protocol, (1.0, 1.0))):
        alpha, gb_s = alpha * alpha_factor, gb_s * speed
    return alpha, gb_s * NCCL_CHANNELS.get(force.nccl_channels, 1.0)


def unknown_overrides(overrides: Mapping[str, float]) -> str:
    """What is wrong with the keys of simulation.compute, with the choices; empty when nothing is."""
    names = {item.name for item in fields(Costs)} | set(BEHAVIOUR)
    unknown = [key for key in overrides if key not in names and key.partition(".")[0] not in ("alpha_us", "gb_s")]
    if not unknown:
        return ""
    choices = ", ".join(sorted(names))
    return f"engine.simulation.compute: unknown key {', '.join(unknown)}; choices: {choices}, alpha_us.ALGORITHM, gb_s.ALGORITHM"


# keys of simulation.compute that are no cost but a behaviour of outputs (outputs.py)
BEHAVIOUR = ("token_flip_share", "logprob_jitter")


def default_costs(model: Model, node: Node) -> Costs:
    """Constants from the node's GPU and the model's attention."""
    bandwidth = next((value for name, value in MEMORY_GB_S.items() if name in node.gpu_model), None)
    if node.capability == 0:
        return Costs(memory_gb_s=20.0, tflops=0.2, layer_graph_us=150.0, layer_eager_us=150.0, kv_bytes=_kv_bytes(model, 1))
    if bandwidth is None:
        bandwidth = {12: 1792.0, 10: 8000.0, 9: 4800.0}.get(node.capability // 10, 1000.0)
    sm120 = node.sm120
    return Costs(
        memory_gb_s=bandwidth * 0.85,
        tflops=(260.0 if sm120 else 420.0) * (1.0 if model.weight_bits < 8 or not sm120 else 0.6),
        layer_graph_us=118.0 if sm120 else 32.0,
        layer_eager_us=210.0 if sm120 else 120.0,
        step_us=900.0 if sm120 else 400.0,
        prefill_step_us=4000.0 if sm120 else 2500.0,
        kv_bytes=_kv_bytes(model, max(1, node.gpus)),
    )


def _kv_bytes(model: Model, gpus: int) -> float:
    """KV cache of one token on one GPU: latent attention keeps 576 values a layer on every GPU, grouped attention splits its heads."""
    if any(word in model.architecture for word in ("Deepseek", "GlmMoeDsa")):
        return 576.0 * 2 * model.layers
    return 2.0 * 2 * model.layers * model.hidden / 8 / gpus


def factors(effects: Mapping[str, Mapping[str, float]], levels: Mapping[str, str]) -> tuple[float, float]:
    """Extra true effects as factors on decode and prefill time: +5 for a time metric takes 5 % of that time away.

    A metric that starts with tpot, chunk or e2e acts on decode, ttft on prefill, a throughput on both."""
    decode = prefill = 1.0
    for level, by_metric in effects.items():
        factor, _, value = level.partition("=")
        if levels.get(factor) != value:
            continue
        for metric, percent in by_metric.items():
            if metric.startswith("ttft"):
                prefill *= 1 - percent / 100
            elif metric.startswith(("tpot", "chunk", "e2e")):
                decode *= 1 - percent / 100
            else:
                decode /= 1 + percent / 100
                prefill /= 1 + percent / 100
    return decode, prefill
