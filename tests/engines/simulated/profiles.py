"""Profiles of the simulated engine as the files of conf give them."""

from pathlib import Path
from typing import Any

import yaml

from runner.engines.simulated.cost import CostModel, cost_model
from runner.engines.simulated.in_force import Force
from runner.engines.simulated.shapes import Model, Node
from runner.spec.engine import EngineSpec, Simulation
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec

CONF = Path(__file__).resolve().parents[3] / "conf"
SIZES = (1, 2, 4, 8, 16, 32, 48, 64)


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((CONF / name).read_text()))


def simulation_of(profile: str) -> Simulation:
    """The switches of conf/engine/PROFILE.yaml over those of simulated.yaml."""
    base, over = read("engine/simulated.yaml"), read(f"engine/{profile}.yaml")
    over.pop("defaults")
    merged = {**base, **over, "simulation": {**base["simulation"], **over["simulation"]}}
    return EngineSpec.model_validate(merged).simulation


def costs_of(simulation: Simulation, node: str, force: Force) -> CostModel:
    """Of the small MoE on conf/node/NODE.yaml."""
    model = Model.of(ModelSpec.model_validate(read("model/moe_small.yaml")).model_dump(mode="json"))
    place = Node.of(NodeSpec.model_validate(read(f"node/{node}.yaml")).model_dump(mode="json"))
    return cost_model(model, place, force, simulation.compute, {}, {})
