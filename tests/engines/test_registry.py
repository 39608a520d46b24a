"""`engine=auto`: never a silent fall-back. And every engine configuration composes and validates."""

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from runner.config import config_folder
from runner.engines import gpus as gpus_module
from runner.engines.attached import AttachedEngine
from runner.engines.container import ContainerEngine
from runner.engines.registry import choose_engine, resolve_kind
from runner.engines.sglang import SglangEngine
from runner.engines.simulated.engine import SimulatedEngine
from runner.errors import UserError
from runner.spec.engine import Deadlines, EngineSpec, Simulation
from runner.spec.node import NodeSpec
from tests.engines import fake_sglang

NODE = NodeSpec(name="n", gpus=8, gpu_model="g", capability=120, memory_gb=96, link="pcie", link_gb_s=63)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(gpus_module, "visible_count", lambda: count)


def test_auto_without_a_gpu_is_simulated_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert isinstance(choose_engine(EngineSpec(kind="auto"), NODE), SimulatedEngine)
    assert "SIMULATED" in resolve_kind(EngineSpec(kind="auto")).reason


def test_auto_without_a_gpu_does_not_pass_over_an_interpreter_that_has_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(monkeypatch, 0)
    for python, said in ((sys.executable, "has no sglang"), (str(tmp_path / "nope"), "no such file")):
        with pytest.raises(UserError, match=said):
            choose_engine(EngineSpec(kind="auto", python=python), NODE)
    spec = EngineSpec(kind="auto", python=sys.executable, extra_python_path=(str(fake_sglang.write(tmp_path / "site")),))
    assert isinstance(choose_engine(spec, NODE), SimulatedEngine)


def test_auto_with_gpus_and_an_engine_is_sglang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(monkeypatch, 8)
    spec = EngineSpec(kind="auto", python=sys.executable, extra_python_path=(str(fake_sglang.write(tmp_path / "site")),))
    assert isinstance(choose_engine(spec, NODE), SglangEngine)
    assert resolve_kind(spec).reason.startswith("8 GPUs are visible")


def test_auto_with_gpus_and_no_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    with pytest.raises(UserError, match=r"8 GPUs are visible, but .* has no sglang.*engine.python=.*engine=simulated"):
        choose_engine(EngineSpec(kind="auto", python=sys.executable), NODE)


def test_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    assert isinstance(choose_engine(EngineSpec(kind="simulated"), NODE), SimulatedEngine)
    assert isinstance(choose_engine(EngineSpec(kind="sglang"), NODE), SglangEngine)
    assert isinstance(choose_engine(EngineSpec(kind="attached", url="http://127.0.0.1:1"), NODE), AttachedEngine)
    assert isinstance(choose_engine(EngineSpec(kind="container", image="i"), NODE), ContainerEngine)


@pytest.mark.parametrize("name", ["sglang", "container", "attached", "auto", "simulated"])
def test_configurations(name: str) -> None:
    with initialize_config_dir(str(config_folder()), version_base=None):
        changes = (
            [] if name == "simulated" else ["engine.deadlines.silent_s=7", "engine.python=/x", "+engine.options.mem-fraction-static=0.8"]
        )
        content = OmegaConf.to_container(compose(overrides=[f"+engine={name}", *changes]).engine)
    assert isinstance(content, dict)
    spec = EngineSpec.model_validate({str(key): value for key, value in content.items()})
    assert spec.kind == name
    if name == "simulated":
        assert set(content["simulation"]) == set(Simulation.model_fields), "every switch can be set without a plus"
        assert set(content["deadlines"]) == set(Deadlines.model_fields)
    else:
        assert spec.version is None, "a version that only the simulated engine plays is not asserted of a real one"
        assert spec.deadlines == EngineSpec().deadlines.model_copy(update={"silent_s": 7}), "the file repeats the contract's defaults"
