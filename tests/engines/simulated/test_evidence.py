"""The shipped factors' evidence, asked of what the simulated engine prints: `observed` exactly where the flag is in force."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.config import config_folder
from runner.engines.evidence.judge import judge_evidence
from runner.engines.evidence.sources import Sources
from runner.engines.simulated.force import decide
from runner.engines.simulated.options import parse, words_of
from runner.engines.simulated.resolve import probe_simulated
from runner.engines.simulated.shapes import Model, Node, version_of
from runner.spec.engine import EngineSpec
from runner.spec.factor import FactorSpec
from tests.engines.simulated.support import BASE, GLM5, H200_NODE, MOE, PCIE_NODE

VERSIONS = ("0.5.9", "0.5.11", "0.5.13", "0.5.14", "0.5.15.post1", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
READY = "The server is fired up and ready to roll!"


def factor(name: str) -> FactorSpec:
    path = Path(config_folder()) / "factor" / f"{name}.yaml"
    return FactorSpec.model_validate({"name": name, **yaml.safe_load(path.read_text())})


def grade(
    name: str,
    level: str,
    version: str,
    options: dict[str, Any],
    env: dict[str, str] | None = None,
    patches: tuple[str, ...] = (),
    h200: bool = False,
) -> tuple[str, tuple[str, ...]] | None:
    """(grade, what is in force), or None where the launch is refused."""
    node, model, base = (H200_NODE, MOE, {"tp-size": 2}) if h200 else (PCIE_NODE, GLM5, BASE)
    number = version_of(version)
    args = parse(words_of({**base, **options}), number)
    engine = EngineSpec(kind="simulated", version=version)
    probe = probe_simulated(engine, node)
    modules = {"mscclpp": probe["importable"]["mscclpp"], "flashinfer_comm": probe["importable"]["flashinfer.comm"]}
    shapes = Model.of(model.model_dump(mode="json")), Node.of(node.model_dump(mode="json"))
    decision = decide(number, args, env or {}, patches, *shapes, modules)
    if decision.refusal is not None:
        return None
    lines = [text for _, _, text in (*decision.lines, *decision.debug_lines)]
    sources = Sources(log="\n".join([*lines, READY]), debug=True, server_info=dict(decision.args), probe=probe)
    return judge_evidence(factor(name), level, sources, version).grade, decision.force.names


@pytest.mark.parametrize("version", VERSIONS)
def test_mscclpp(version: str) -> None:
    found = grade("mscclpp", "on", version, {"enable-mscclpp": True})
    assert found is not None
    assert found[0] == ("observed" if "mscclpp" in found[1] else "contradicted")


@pytest.mark.parametrize("version", VERSIONS)
def test_patched_fusion(version: str) -> None:
    option: dict[str, Any] = {"enable-flashinfer-allreduce-fusion": True}
    if version_of(version) >= (0, 5, 14):
        option = {"flashinfer-allreduce-fusion-backend": "trtllm"}
    found = grade("sm120_fusion", "patched", version, option, patches=("sm120_fusion",))
    assert found is not None
    assert "fusion" in found[1]
    assert found[0] == "observed"
    unpatched = grade("sm120_fusion", "patched", version, option)
    assert unpatched is None or unpatched[0] != "observed"


@pytest.mark.parametrize("version", VERSIONS)
def test_fusion_on_h200(version: str) -> None:
    option: dict[str, Any] = {"enable-flashinfer-allreduce-fusion": True}
    if version_of(version) >= (0, 5, 14):
        option = {"flashinfer-allreduce-fusion-backend": "trtllm"}
    found = grade("allreduce_fusion", "trtllm", version, option, h200=True)
    assert found is not None
    assert found == ("observed", found[1])
    assert "fusion" in found[1]


@pytest.mark.parametrize("version", ("0.5.21", "0.5.22", "0.5.23"))
def test_pcie_ipc(version: str) -> None:
    found = grade("pcie_ipc_allreduce", "on", version, {}, env={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"})
    assert found is not None
    assert found[0] == ("observed" if "pcie_ipc" in found[1] else "contradicted")


@pytest.mark.parametrize("version", VERSIONS)
def test_single_batch_overlap_is_never_observed(version: str) -> None:
    found = grade("single_batch_overlap", "on", version, {"enable-single-batch-overlap": True})
    assert found is not None
    assert found[0] in ("resolved", "contradicted")


@pytest.mark.parametrize("version", VERSIONS)
def test_custom_all_reduce_on_pcie_is_contradicted(version: str) -> None:
    found = grade("custom_all_reduce", "on", version, {})
    assert found is not None
    assert found[0] == "contradicted"
    assert "custom_all_reduce" not in found[1]
