"""What two H200s taught: intent in /server_info is not proof (fixtures/h200)."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.config import load_factor
from runner.engines.evidence import Sources, engine_chose
from runner.engines.evidence.action import evidence_files
from runner.engines.evidence.resolved_view import resolved_view, unfair
from runner.errors import UserError
from runner.spec.factor import FactorSpec

ROOT = Path(__file__).parent.parent.parent.parent
H200 = ROOT / "tests/fixtures/h200"
PROBE = H200 / "environment_probe.json"


def factor(name: str) -> FactorSpec:
    return FactorSpec.model_validate({"name": name, **load_factor(name, [ROOT / "conf"])})


def judge(name: str, level: str, arm: str, probe: Path | None = None) -> dict[str, Any]:
    return evidence_files(factor(name), level, H200 / f"{arm}.server.log", H200 / f"{arm}.server_info.json", probe)


@pytest.mark.parametrize(
    ("name", "level", "arm", "probe", "grade", "word"),
    [
        ("mscclpp", "on", "mscclpp", PROBE, "contradicted", "No module named 'mscclpp'"),
        ("mscclpp", "on", "mscclpp", None, "resolved", "enable_mscclpp"),
        ("mscclpp", "on", "base1", None, "contradicted", "enable_mscclpp"),
        ("mscclpp", "off", "base1", PROBE, "resolved", "enable_mscclpp"),
        ("mscclpp", "off", "mscclpp", None, "contradicted", "enable_mscclpp"),
        ("allreduce_fusion", "trtllm", "fusion", None, "contradicted", "allreduce_fusion API is not available"),
        ("allreduce_fusion", "trtllm", "fusion", PROBE, "contradicted", "allreduce_fusion API is not available"),
        ("allreduce_fusion", "auto", "base1", None, "contradicted", "allreduce_fusion API is not available"),
        ("allreduce_fusion", "off", "base1", None, "contradicted", "Auto-enabling"),
        ("custom_all_reduce", "on", "base1", None, "resolved", "disable_custom_all_reduce"),
        ("custom_all_reduce", "on", "base1", PROBE, "resolved", "disable_custom_all_reduce"),
        ("custom_all_reduce", "off", "nccl1", None, "resolved", "disable_custom_all_reduce"),
        ("custom_all_reduce", "on", "nccl1", None, "contradicted", "disable_custom_all_reduce"),
        ("custom_all_reduce", "off", "base1", None, "contradicted", "disable_custom_all_reduce"),
        ("attention_backend", "triton", "base1", None, "resolved", "triton"),
        ("chunked_prefill_size", "8192", "base1", None, "observed", "chunked_prefill_size=8192"),
        ("chunked_prefill_size", "2048", "base1", None, "contradicted", "8192"),
        ("cuda_graph_batch_sizes", "to_64", "base1", None, "observed", "cuda graph: True"),
        ("overlap_schedule", "on", "base1", None, "resolved", "disable_overlap_schedule"),
    ],
)
def test_the_grade(name: str, level: str, arm: str, probe: Path | None, grade: str, word: str) -> None:
    found = judge(name, level, arm, probe)
    assert next(iter(found)) == "grade"
    assert (found["grade"], found["factor"], found["level"]) == (grade, name, level)
    assert word in found["proof"]


def test_a_proof_from_the_log_names_its_line() -> None:
    found = judge("allreduce_fusion", "trtllm", "fusion")
    lines = (H200 / "fusion.server.log").read_text().splitlines()
    assert found["source"] == "log"
    assert lines[found["line"] - 1].strip() == found["proof"]


@pytest.mark.parametrize("level", ["auto", "off"])
def test_fusion_that_nobody_asked_for_is_said_in_three_parts(level: str) -> None:
    found = judge("allreduce_fusion", level, "base1")
    assert found["engine_chose"] == "auto"
    for part in ("asked for by nobody", "resolved to `auto` by the engine", "Auto-enabling", "allreduce_fusion API is not available"):
        assert part in found["proof"]


def test_what_the_engine_switched_on_by_itself() -> None:
    factors = {name: factor(name) for name in ("mscclpp", "allreduce_fusion", "custom_all_reduce")}
    info = json.loads((H200 / "base1.server_info.json").read_text())
    sources = Sources(log=(H200 / "base1.server.log").read_text(), server_info=info)
    (chosen,) = engine_chose(factors, {"mscclpp": "off"}, sources, "0.5.15.post1")
    assert (chosen.factor, chosen.level, chosen.grade) == ("allreduce_fusion", "auto", "contradicted")
    for part in ("asked for by nobody", "resolved to `auto`", "contradicted", "not available"):
        assert part in chosen.proof
    assert engine_chose(factors, {"allreduce_fusion": "auto"}, sources, "0.5.15.post1") == (), "the arm asked for it"


def test_the_choice_is_seen_in_the_body_alone_and_in_the_log_alone() -> None:
    only_body = evidence_files(factor("allreduce_fusion"), "off", None, H200 / "base1.server_info.json")
    only_log = evidence_files(factor("allreduce_fusion"), "off", H200 / "base1.server.log", None, PROBE)
    assert only_body["engine_chose"] == only_log["engine_chose"] == "auto"
    assert only_body["grade"] == only_log["grade"] == "contradicted"


def test_the_arguments_that_the_log_echoes_stand_in_for_a_missing_body() -> None:
    found = evidence_files(factor("mscclpp"), "on", H200 / "mscclpp.server.log", None)
    assert (found["grade"], found["proof"]) == ("resolved", "server_info: enable_mscclpp = true")
    assert evidence_files(factor("mscclpp"), "on", H200 / "base1.server.log", None)["grade"] == "contradicted"


def test_mistakes_are_the_users(tmp_path: Path) -> None:
    body = H200 / "base1.server_info.json"
    with pytest.raises(UserError, match="choices: off, on"):
        evidence_files(factor("mscclpp"), "maybe", H200 / "base1.server.log", body)
    with pytest.raises(UserError, match="readable file"):
        evidence_files(factor("mscclpp"), "on", tmp_path / "none.log", body)
    garbage = tmp_path / "garbage.json"
    garbage.write_text("<html>")
    with pytest.raises(UserError, match="not JSON"):
        evidence_files(factor("mscclpp"), "on", H200 / "base1.server.log", garbage)
    garbage.write_text("[1]")
    with pytest.raises(UserError, match="not a JSON object"):
        evidence_files(factor("mscclpp"), "on", H200 / "base1.server.log", garbage)
    empty = tmp_path / "empty.log"
    empty.write_text("")
    with pytest.raises(UserError, match="nothing to judge by"):
        evidence_files(factor("mscclpp"), "on", empty, None)


def test_a_body_saved_by_curl_with_its_status_line_is_read() -> None:
    found = evidence_files(factor("overlap_schedule"), "on", None, ROOT / "tests/fixtures/cpu/server_info.txt")
    assert found["version"].startswith("0.5.23")


def test_fair_arms_and_unfair_ones() -> None:
    views = {arm: resolved_view(json.loads((H200 / f"{arm}.server_info.json").read_text())) for arm in ("base1", "mscclpp", "nccl1")}
    assert views["base1"]["max_total_num_tokens"] == 2408326
    assert views["base1"]["graph_batch_sizes_decode"] == [1, 2, 4, 8, 16, 32, 48, 64]
    assert views["base1"]["max_running_requests"] == 4096
    assert views["mscclpp"]["enable_mscclpp"] is True
    assert "random_seed" not in views["base1"]
    assert unfair(views["mscclpp"], views["base1"]) == (), "the treatment itself is not unfair"
    assert unfair(views["nccl1"], views["base1"]) == (), "a pool 0.03 % larger changes nothing"
    small = {**views["mscclpp"], "max_total_num_tokens": 1_900_000, "graph_batch_sizes_decode": [1, 2]}
    assert [sentence.split(":")[0] for sentence in unfair(small, views["base1"])] == ["max_total_num_tokens", "graph_batch_sizes_decode"]
    missing = {name: value for name, value in views["base1"].items() if name != "max_running_requests"}
    assert unfair(missing, views["base1"]) == ("max_running_requests: not shown, baseline 4096",)


def test_what_the_engine_took_back_is_off_and_chosen_by_nobody() -> None:
    """From a server that was told to keep fusion off: it logs `Auto-enabling` and takes it back in the next line."""
    log, info = H200 / "enforced_off.server.log", H200 / "enforced_off.server_info.json"
    found = evidence_files(factor("allreduce_fusion"), "off", log, info, PROBE)
    assert found["grade"] == "observed" and "forcibly disabled" in found["proof"] and found["engine_chose"] is None


def test_without_the_line_that_takes_it_back_the_choice_stands(tmp_path: Path) -> None:
    lines = (H200 / "enforced_off.server.log").read_text().splitlines(keepends=True)
    cut = tmp_path / "server.log"
    cut.write_text("".join(line for line in lines if "forcibly disabled" not in line))
    found = evidence_files(factor("allreduce_fusion"), "off", cut, H200 / "base1.server_info.json")
    assert found["grade"] == "contradicted" and found["engine_chose"] == "auto"
