"""The closed grammar of markers, and what counts as evidence at all."""

from typing import Any

import pytest

from runner.engines.evidence import Sources, judge_evidence
from runner.engines.evidence.markers import find, parse
from runner.errors import UserError
from runner.spec.factor import EvidenceRule, FactorSpec, Level, Marker

PROBE = {
    "capability": [12, 0],
    "gpus": 8,
    "importable": {"mscclpp": False, "flashinfer": True, "flashinfer.comm": False},
    "import_errors": {"flashinfer.comm": "No module named 'cutile_cache'"},
}
INFO: dict[str, Any] = {
    "enable_mscclpp": True,
    "tp_size": 8,
    "moe_a2a_backend": "none",
    "numa_node": None,
    "internal_states": [{"disable_shared_experts_fusion": False, "x": 1}, {"x": 2}],
}
METRICS = """# HELP sglang:cuda_graph_passes_total passes
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="0"} 3.0
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="1"} 4.0
sglang:cuda_graph_passes_total{mode="prefill_none",tp_rank="0"} 0.0
sglang:cuda_graph_passes_total_other 99
"""
SOURCES = Sources(
    log="first\nsecond line here\n", probe=PROBE, server_info=INFO, metrics=METRICS, trace=("ncclDevKernel_AllReduce_RING_LL(x)",)
)


@pytest.mark.parametrize(
    ("kind", "text", "matches"),
    [
        ("log", "second line", True),
        ("log", "third", False),
        ("trace", "_RING_LL(", True),
        ("trace", "mscclpp", False),
        ("probe", "not importable.mscclpp", True),
        ("probe", "importable.flashinfer", True),
        ("probe", "not importable.flashinfer.comm", True),
        ("probe", "not importable.never_asked", False),
        ("probe", "importable.never_asked", False),
        ("probe", "capability in [120, 121]", True),
        ("probe", "capability not in [90]", True),
        ("probe", "capability in [90]", False),
        ("probe", "gpus >= 8", True),
        ("probe", "gpus < 8", False),
        ("server_info", "enable_mscclpp == true", True),
        ("server_info", "enable_mscclpp == 1", False),
        ("server_info", "moe_a2a_backend == none", True),
        ("server_info", "numa_node == null", True),
        ("server_info", "numa_node != null", False),
        ("server_info", "tp_size == 8", True),
        ("server_info", "tp_size > nothing", False),
        ("server_info", "internal_states.0.disable_shared_experts_fusion == false", True),
        ("server_info", "internal_states.*.x == 2", True),
        ("server_info", "internal_states.7.x == 2", False),
        ("server_info", "absent != true", False),
        ("metrics", "sglang:cuda_graph_passes_total > 6", True),
        ("metrics", "sglang:cuda_graph_passes_total > 8", False),
        ("metrics", 'sglang:cuda_graph_passes_total{mode="prefill_none"} == 0', True),
        ("metrics", 'sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="1"} >= 4', True),
        ("metrics", "sglang:never_seen == 0", False),
    ],
)
def test_what_matches(kind: str, text: str, matches: bool) -> None:
    assert (find(Marker.model_validate({kind: text}), SOURCES) is not None) is matches
    assert find(Marker.model_validate({kind: text}), Sources()) is None, "what was not read proves nothing"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("server_info", "__import__('os').system('true')"),
        ("server_info", "a b"),
        ("server_info", "a in 5"),
        ("server_info", ""),
        ("probe", "x is None or y"),
        ("metrics", "sglang:x"),
        ("metrics", "sglang:x > many"),
        ("metrics", "rate(sglang:x[5m]) > 0"),
        ("log", "  "),
    ],
)
def test_what_is_no_marker(kind: str, text: str) -> None:
    with pytest.raises(UserError):
        parse(Marker.model_validate({kind: text}))


def test_a_marker_has_one_place_to_look() -> None:
    for marker in (Marker(), Marker(log="a", probe="b")):
        with pytest.raises(UserError, match="exactly one"):
            parse(marker)


def test_a_probe_says_why_an_import_failed() -> None:
    found = find(Marker(probe="not importable.flashinfer.comm"), SOURCES)
    assert found is not None and "cutile_cache" in found.proof


def test_the_echo_of_the_arguments_is_not_evidence() -> None:
    echo = "server_args=ServerArgs(chunked_prefill_size=2048, x=1)\n"
    real = "[x TP0] max_total_num_tokens=9, chunked_prefill_size=2048, max_prefill_tokens=1\n"
    marker = Marker(log="chunked_prefill_size=2048,")
    assert find(marker, Sources(log=echo)) is None
    found = find(marker, Sources(log=echo + real))
    assert found is not None and found.line == 2


def _factor(*rules: EvidenceRule) -> FactorSpec:
    return FactorSpec(name="flag", levels={"off": Level(), "on": Level(options={"enable-flag": True})}, evidence=rules)


def test_rules_speak_for_their_versions_only() -> None:
    factor = _factor(EvidenceRule(engine=">=0.5.14,<0.5.21", contradicted=Marker(log="gone")))
    sources = Sources(log="gone\n", server_info={"enable_flag": True})
    grades = {
        version: judge_evidence(factor, "on", sources, version).grade for version in ("0.5.13.post1", "0.5.14", "0.5.15.post1", "0.5.21")
    }
    assert grades == {"0.5.13.post1": "resolved", "0.5.14": "contradicted", "0.5.15.post1": "contradicted", "0.5.21": "resolved"}


def test_a_development_build_gets_only_rules_without_an_upper_end() -> None:
    sources = Sources(log="gone\n", server_info={"enable_flag": True})
    closed = _factor(EvidenceRule(engine=">=0.5.14,<0.5.21", contradicted=Marker(log="gone")))
    opened = _factor(EvidenceRule(engine=">=0.5.14", contradicted=Marker(log="gone")))
    assert judge_evidence(closed, "on", sources, "main-abc").grade == "resolved"
    assert judge_evidence(opened, "on", sources, "main-abc").grade == "contradicted"


def test_a_rule_without_levels_is_not_about_the_reference_level() -> None:
    factor = _factor(EvidenceRule(observed=Marker(log="works")))
    sources = Sources(log="works\n", server_info={"enable_flag": False})
    assert judge_evidence(factor, "off", sources, "0.5.15").grade == "resolved"
    assert judge_evidence(factor, "on", sources, "0.5.15").grade == "observed"


def test_what_speaks_against_beats_what_speaks_for() -> None:
    factor = _factor(EvidenceRule(observed=Marker(log="workspace made"), contradicted=Marker(log="disabled globally")))
    assert judge_evidence(factor, "on", Sources(log="workspace made\ndisabled globally\n"), "0.5.15").grade == "contradicted"


def test_nothing_read_is_said_as_such() -> None:
    found = judge_evidence(_factor(), "on", Sources(), "0.5.15")
    assert (found.grade, found.source) == ("resolved", "none")
    assert "requested" in found.proof


def test_the_schedulers_own_view_beats_the_parents() -> None:
    factor = FactorSpec(name="f", levels={"on": Level(options={"disable-x": False}), "off": Level(options={"disable-x": True})})
    flipped = {"disable_x": False, "internal_states": [{"disable_x": True}]}
    assert judge_evidence(factor, "off", Sources(server_info=flipped), "0.5.15").grade == "resolved"
    assert judge_evidence(factor, "on", Sources(server_info=flipped), "0.5.15").grade == "contradicted"


def test_a_bad_version_set_is_the_users_mistake() -> None:
    factor = _factor(EvidenceRule(engine="newer than 5", observed=Marker(log="x")))
    with pytest.raises(UserError, match="set of versions"):
        judge_evidence(factor, "on", Sources(), "0.5.15")
