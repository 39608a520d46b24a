"""Every shipped factor, node, model, workload and protocol is valid, for every engine version it speaks of."""

import pytest
from packaging.version import Version

from runner.config import config_folder, load_factor
from runner.planning.conditions import parse, version_in
from runner.planning.treatments import level_plan
from runner.spec.factor import FactorSpec, Marker

from .conftest import Compose

NAMES = sorted(path.stem for path in (config_folder() / "factor").glob("*.yaml"))
VERSIONS = ["0.5.9", "0.5.10", *(f"0.5.{minor}" for minor in range(11, 24)), "0.5.13.post1", "0.5.15.post1"]
ASKED_FOR = {
    "mscclpp", "mscclpp_max_bytes", "single_batch_overlap", "two_batch_overlap", "sm120_fusion", "allreduce_fusion", "shared_experts_fusion",
    "custom_all_reduce", "pcie_ipc_allreduce", "nccl", "moe_runner_backend", "fp4_gemm_backend", "attention_backend",
    "cuda_graph_batch_sizes", "chunked_prefill_size", "numa_bind", "max_running_requests",
}  # fmt: skip


def factor(name: str) -> FactorSpec:
    return FactorSpec.model_validate(load_factor(name, [config_folder()]))


def test_the_promised_factors_ship() -> None:
    assert set(NAMES) >= ASKED_FOR
    assert list(factor("allreduce_fusion").levels) == ["off", "auto", "trtllm", "mnnvl", "cutedsl"]
    assert factor("two_batch_overlap").levels["on_with_deepep"].bundle


@pytest.mark.parametrize("name", NAMES)
def test_levels_and_conditions_are_readable_in_every_version(compose: Compose, name: str) -> None:
    settings = compose("+experiment=overlap_grid")
    facts = {"node": settings.node.model_dump(), "model": settings.model.model_dump()}
    spec = factor(name)
    assert spec.reference_level in spec.levels
    for version in VERSIONS:
        for level in spec.levels:
            plan = level_plan(spec, name, level, Version(version), facts)
            assert level != spec.reference_level or not plan.refusals, f"{name}: the reference level must always be there"
    for rule in spec.equivalent:
        assert rule.same_as is None or rule.same_as in spec.levels
        assert set(rule.levels) <= set(spec.levels)


@pytest.mark.parametrize("name", NAMES)
def test_markers_have_one_key_and_levels_that_exist(name: str) -> None:
    spec = factor(name)
    for rule in spec.evidence:
        version_in(Version("0.5.9"), rule.engine, name)
        assert set(rule.levels or ()) <= set(spec.levels)
        for group in (rule.observed, rule.contradicted, rule.resolved):
            for marker in (group,) if isinstance(group, Marker) else group:
                given = marker.model_dump(exclude_none=True)
                assert len(given) == 1, f"{name}: {given}"
                if marker.server_info is not None:
                    parse(marker.server_info, name)


def test_levels_that_a_version_lacks_are_refused_by_name(compose: Compose) -> None:
    settings = compose("+experiment=h200_allreduce")
    facts = {"node": settings.node.model_dump(), "model": settings.model.model_dump()}
    spec = factor("allreduce_fusion")

    def reasons(level: str, version: str) -> list[str]:
        return [refusal.reason for refusal in level_plan(spec, "allreduce_fusion", level, Version(version), facts).refusals]

    assert reasons("trtllm", "0.5.15.post1") == []
    assert "the backends up to 0.5.20 are auto, trtllm and mnnvl" in reasons("cutedsl", "0.5.15.post1")
    assert reasons("cutedsl", "0.5.23") == []
    assert any("needs engine >=0.5.14" in reason for reason in reasons("mnnvl", "0.5.13.post1"))
    blackwell = {**facts, "node": {**facts["node"], "capability": 120}}
    refused = level_plan(spec, "allreduce_fusion", "trtllm", Version("0.5.14"), blackwell).refusals
    assert refused[0].sentence == "FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."


@pytest.mark.parametrize(
    "override",
    [
        f"{group}={path.stem}"
        for group in ("node", "model", "workload", "protocol")
        for path in sorted((config_folder() / group).glob("*.yaml"))
    ],
)
def test_every_group_file_composes(compose: Compose, override: str) -> None:
    settings = compose(override)
    group, name = override.split("=")
    assert getattr(settings, group).name.replace("-", "_") == name
