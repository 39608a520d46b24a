"""The audit on whole releases: the facts of each version, within seconds, without importing anything."""

import time
from pathlib import Path

import pytest

from runner.engines.audit import Gate, audit, env_reads, packages_in
from runner.engines.audit.action import audit_engine
from tests.engine.engine_python import ENGINE_PYTHON
from tests.engine.fetch_wheels import PAIRS, pair

pytestmark = pytest.mark.engine
MODEL = "GlmMoeDsaForCausalLM"


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Gate]]:
    found = {}
    for version in PAIRS:
        sglang, flashinfer = pair(version)
        packages = {**packages_in(Path(sglang)), **packages_in(Path(flashinfer))}
        found[version] = audit(sglang, 120, 8, link="pcie", architecture=MODEL, packages=packages)
    return found


def decisive(gates: list[Gate], flag: str) -> list[Gate]:
    return [gate for gate in gates if gate.flag == flag and gate.own and gate.gives in {"raises", "closed"}]


@pytest.mark.parametrize("version", list(PAIRS))
def test_fusion_leaves_sm120_out(version: str, answers: dict[str, list[Gate]]) -> None:
    found = decisive(answers[version], "allreduce_fusion")
    assert any("_is_sm90_supported or _is_sm100_supported" in gate.condition and gate.kind == "decides" for gate in found)
    assert any(gate.kind == "compiles for" for gate in found) is (version != "0.5.23")
    assert any(gate.kind == "refuses" and "requires SM90 or SM10X" in gate.effect for gate in found) is (version != "0.5.9")


@pytest.mark.parametrize(
    ("version", "sentence"),
    [("0.5.9", "cannot be 'none'"), ("0.5.15.post1", "--enable-dp-attention is required"), ("0.5.23", "attention DP")],
)
def test_two_batch_overlap_is_refused(version: str, sentence: str, answers: dict[str, list[Gate]]) -> None:
    assert any(gate.gives == "raises" and sentence in gate.effect for gate in decisive(answers[version], "two_batch_overlap"))


@pytest.mark.parametrize("version", list(PAIRS))
def test_custom_all_reduce_needs_nvlink_and_symmetric_memory_knows_no_sm120(version: str, answers: dict[str, list[Gate]]) -> None:
    assert any("PCIe-only" in gate.effect for gate in decisive(answers[version], "custom_all_reduce"))
    # 0.5.9 looks SM120 up in a table without it; later versions ask first.
    sentence = "KeyError: 12" if version == "0.5.9" else "Device capability %s not supported"
    assert any(sentence in gate.effect for gate in decisive(answers[version], "torch_symm_mem"))


def test_the_pcie_exchange_exists_only_in_the_newest(answers: dict[str, list[Gate]]) -> None:
    assert {version: any(gate.flag == "pcie_ipc_allreduce" for gate in gates) for version, gates in answers.items()} == {
        "0.5.9": False,
        "0.5.15.post1": False,
        "0.5.23": True,
    }


def test_variables_by_version() -> None:
    names = ["SGLANG_MSCCLPP_MAX_BYTES", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "NCCL_ALGO"]
    assert {version: tuple(env_reads(pair(version)[0], names).values()) for version in PAIRS} == {
        "0.5.9": (True, False, None),
        "0.5.15.post1": (False, False, None),
        "0.5.23": (False, True, None),
    }


def test_the_installed_engine_is_audited_through_its_interpreter() -> None:
    begun = time.process_time()
    answer = audit_engine(ENGINE_PYTHON, capability=120, world_size=8, link="pcie", architecture=MODEL)
    assert time.process_time() - begun < 20
    verdicts = {flag["flag"]: flag["verdict"] for flag in answer["flags"]}
    assert verdicts["allreduce_fusion"] == verdicts["two_batch_overlap"] == "refused"
    assert "mscclpp" in verdicts
    assert "REFUSES here" in answer["text"]
