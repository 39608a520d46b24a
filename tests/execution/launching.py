"""A job for one real launch of the simulated engine, small and quick."""

from pathlib import Path

from runner.engines.base import LaunchOrder
from runner.execution.job import LaunchJob, NodeOrder
from runner.spec.engine import EngineSpec, Simulation
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from runner.spec.protocol import Limits, Protocol
from runner.spec.workload import Lengths, PhaseSpec, WorkloadSpec

NODE = NodeSpec(name="n", gpus=1, gpu_model="g", capability=120, memory_gb=96, link="pcie", link_gb_s=63)
MODEL = ModelSpec(name="m", hidden_size=64, num_layers=2)
PHASE = PhaseSpec(requests=4, input=Lengths(value=32), output=Lengths(value=8), seconds=0.2, warmup_seconds=0.0)
WORKLOAD = WorkloadSpec(name="w", phases={"decode_c1": PHASE})
LIMITS = Limits(dispatch_lag_p99_ms=1e4, loop_stall_ms=1e4, client_cpu_share=100, littles_law_residual=10)
PROTOCOL = Protocol(fingerprint_prompts=0, prime=False, confirm=False, min_blocks=2, max_blocks=2, limits=LIMITS)


def engine(load_s: float = 0.05) -> EngineSpec:
    """The simulated engine, fast; `load_s` is its load time."""
    return EngineSpec(kind="simulated", version="0.5.9", simulation=Simulation(load_s=load_s, time_scale=0.02))


def node_order(lock: Path, load_s: float = 0.05, study: str = "s") -> NodeOrder:
    return NodeOrder(study=study, engine=engine(load_s), node=NODE, lock_dir=str(lock))


def launch_job(study: Path, name: str = "b00-p00-baseline", load_s: float = 0.05) -> LaunchJob:
    """One launch with one short phase, its folder below `study`."""
    order = LaunchOrder(
        study="s", launch=name, arm="baseline", levels={}, folder=str(study / name), engine=engine(load_s), model=MODEL, node=NODE
    )
    return LaunchJob(order=order, purpose="measure", phases=("decode_c1",), workload=WORKLOAD, protocol=PROTOCOL, study_folder=str(study))
