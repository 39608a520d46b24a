"""From a LaunchOrder's JSON to everything the server needs: who it plays, what is in force, what it costs, which faults it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.engines.simulated import options
from runner.engines.simulated.cost import CostModel, cost_model
from runner.engines.simulated.faults import Fault, faults_of
from runner.engines.simulated.force import decide
from runner.engines.simulated.in_force import Decision
from runner.engines.simulated.noise import LaunchFactors, StepNoise, launch_factors
from runner.engines.simulated.scheduler import Limits
from runner.engines.simulated.shapes import Model, Node, Version, version_of

DEFAULT_VERSION = "0.5.9"


@dataclass(frozen=True)
class Launch:
    """One launch, decided. `profiled_tokens` is what the KV pool could hold, before --max-total-tokens."""

    order: Mapping[str, Any]
    version_text: str
    version: Version
    args: Mapping[str, Any]
    decision: Decision
    model: Model
    node: Node
    cost: CostModel
    limits: Limits
    profiled_tokens: int
    faults: tuple[Fault, ...]
    factors: LaunchFactors
    simulation: Mapping[str, Any]

    @property
    def tp(self) -> int:
        return self.decision.force.tp

    @property
    def seed(self) -> str:
        return f"{self.simulation['seed']}/{self.order['launch_index']}/{self.order['arm']}"

    def step_noise(self) -> StepNoise:
        simulation = self.simulation
        return StepNoise(self.factors, simulation["request_noise_pct"], simulation["cold_start_pct"], f"{self.seed}/steps")

    def fault(self, kind: str) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == kind), None)


def modules_of(simulation: Mapping[str, Any]) -> dict[str, bool]:
    """What the simulated engine's environment can import; `simulation.compute` may say otherwise."""
    compute = simulation["compute"]
    return {
        "mscclpp": bool(compute.get("importable_mscclpp", 0)),
        "flashinfer_comm": bool(compute.get("importable_flashinfer_comm", 1)),
    }


def launch_of(order: Mapping[str, Any]) -> Launch:
    """Decides one launch. Raises options.Refused when argparse would refuse."""
    engine = order["engine"]
    version_text = engine["version"] or DEFAULT_VERSION
    version = version_of(version_text)
    model, node = Model.of(order["model"]), Node.of(order["node"])
    simulation = engine["simulation"]
    args = options.parse(options.words_of(order["options"]), version)
    env = {**node_env(order), **engine["env"], **order["env"]}
    decision = decide(version, args, env, tuple(order["patches"]), model, node, modules_of(simulation))
    cost = cost_model(model, node, decision.force, simulation["compute"], simulation["effects"], order["levels"])
    profiled = pool_tokens(args, cost)
    asked = args.get("max_total_tokens")
    pool = min(profiled, int(asked)) if asked else profiled
    running = int(args.get("max_running_requests") or min(max(int(pool / model.max_context * 512), 2048), 4096))
    limits = Limits(pool_tokens=pool, max_running=running, chunk_tokens=int(args.get("chunked_prefill_size") or 8192))
    return Launch(
        order=order,
        version_text=version_text,
        version=version,
        args=decision.args,
        decision=decision,
        model=model,
        node=node,
        cost=cost,
        limits=limits,
        profiled_tokens=profiled,
        faults=faults_of(simulation["faults"], order["arm"], order["levels"], order["launch_index"], order["block"], simulation["seed"]),
        factors=launch_factors(simulation, order["launch_index"], order["arm"]),
        simulation=simulation,
    )


def node_env(order: Mapping[str, Any]) -> dict[str, str]:
    return dict(order["node"].get("env") or {})


def pool_tokens(args: Mapping[str, Any], cost: CostModel) -> int:
    """How many tokens the KV pool of one GPU holds after weights, graphs and mscclpp's scratch memory; may be negative."""
    node, model = cost.node, cost.model
    if node.capability == 0 or not node.memory_gb:
        return int(args.get("max_total_tokens") or 16384)
    share = float(args.get("mem_fraction_static") or 0.86)
    weights = model.weight_gb if args.get("load_format") != "dummy" or model.weight_gb else 0.0
    scratch = 9 * cost.force.mscclpp_legacy_bytes
    free = node.memory_gb * 1e9 * share - weights * 1e9 / max(1, cost.force.tp) - scratch
    return int(free / cost.costs.kv_bytes)
