"""The audit on real excerpts, on copies with the gates moved and renamed, and on conditions nobody foresaw."""

from pathlib import Path

import pytest

from runner.engines.audit import Gate, audit, audit_json, audit_text, packages_in
from runner.engines.audit.action import audit_engine
from runner.engines.audit.report import verdict_of
from runner.errors import UserError
from tests.engines.source_trees import VERSIONS, small_package, source_tree


def gates(folder: Path, capability: int = 120, flag: str = "allreduce_fusion", **more: object) -> list[Gate]:
    return audit(folder, capability, 8, link="pcie", flags=[flag], **more)  # type: ignore[arg-type]


def the_gate(found: list[Gate]) -> Gate:
    """The run-time gate of the fused path, by what it decides on and not by its name."""
    return next(gate for gate in found if gate.kind == "decides" and "batch_size" in gate.condition)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("capability", "closed"), [(120, True), (89, True), (90, False), (100, False), (103, False)])
def test_the_fusion_gate_asks_for_sm90_or_sm100(version: str, capability: int, closed: bool, tmp_path: Path) -> None:
    gate = the_gate(gates(source_tree(version, tmp_path), capability))
    assert (gate.gives == "closed") is closed
    assert gate.values["_is_sm90_supported"] == str(capability == 90)
    assert gate.values["_is_sm100_supported"] == str(capability // 10 == 10)
    line = (tmp_path / gate.file).read_text().splitlines()[gate.line - 1]
    assert "return (" in line, "file and line lead to the statement"


def test_an_open_gate_says_what_it_still_depends_on(tmp_path: Path) -> None:
    gate = the_gate(gates(source_tree("0.5.15.post1", tmp_path), 90))
    assert gate.gives == "depends"
    assert "batch_size > 0" in gate.depends_on
    assert "_is_sm90_supported" not in gate.depends_on


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.23"])
def test_the_backend_is_refused_on_sm120_with_the_engines_sentence(version: str, tmp_path: Path) -> None:
    found = gates(source_tree(version, tmp_path))
    refusal = next(gate for gate in found if gate.kind == "refuses" and gate.own and gate.gives == "raises")
    assert refusal.effect == "FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs."
    assert refusal.function == "_resolve_backend"
    hopper = gates(tmp_path, 90)
    assert not [gate for gate in hopper if gate.gives == "raises"]


@pytest.mark.parametrize(("version", "lacks"), [("0.5.9", True), ("0.5.15.post1", True), ("0.5.23", False)])
def test_flashinfers_compile_list(version: str, lacks: bool, tmp_path: Path) -> None:
    gate = next(gate for gate in gates(source_tree(version, tmp_path)) if gate.kind == "compiles for")
    assert (gate.gives == "raises") is lacks
    assert ("12" in gate.condition) is not lacks
    assert gate.function == "gen_trtllm_comm_module"


def test_the_preflight_needs_multicast_which_only_nvlink_nodes_have(tmp_path: Path) -> None:
    source_tree("0.5.15.post1", tmp_path)
    answers = {}
    for link in ("pcie", "nvlink", None):
        found = audit(tmp_path, 120, 8, link=link, flags=["allreduce_fusion"])
        answers[link] = next(gate.gives for gate in found if gate.kind == "needs multicast")
    assert answers == {"pcie": "closed", "nvlink": "open", None: "depends"}


@pytest.mark.parametrize("version", VERSIONS)
def test_two_batch_overlap_raises_without_what_it_needs(version: str, tmp_path: Path) -> None:
    source_tree(version, tmp_path)
    plain = [gate for gate in gates(tmp_path, flag="two_batch_overlap") if gate.gives == "raises"]
    assert len(plain) == 1
    assert plain[0].effect.startswith("When enabling two batch overlap")
    # Another architecture changes nothing, an all-to-all backend does, and so does attention DP where the source asks for it.
    assert [gate for gate in gates(tmp_path, 90, flag="two_batch_overlap") if gate.gives == "raises"]
    assert not [
        gate for gate in gates(tmp_path, flag="two_batch_overlap", arguments={"moe_a2a_backend": "deepep"}) if gate.gives == "raises"
    ]
    attention = {"0.5.15.post1": {"enable_dp_attention": True}, "0.5.23": {"attn_dp_size": 8}}.get(version)
    if attention is not None:
        assert not [gate for gate in gates(tmp_path, flag="two_batch_overlap", arguments=attention) if gate.gives == "raises"]


def test_gates_are_found_after_they_moved_and_were_renamed(tmp_path: Path) -> None:
    source_tree("0.5.15.post1", tmp_path)
    old = tmp_path / "sglang/srt/layers/communicator.py"
    new = tmp_path / "sglang/srt/one/two/choice.py"
    new.parent.mkdir(parents=True)
    renamed = {
        "apply_flashinfer_allreduce_fusion": "one_pass",
        "_is_sm90_supported": "_hopper",
        "_is_sm100_supported": "_datacenter",
        "is_sm90_supported": "ask_nine",
        "is_sm100_supported": "ask_ten",
        "_resolve_backend": "_pick",
        "_check_cuda_device_version": "_major_is_one_of",
        "device_capability_majors": "majors",
        "_check_two_batch_overlap": "_look",
        "gen_trtllm_comm_module": "make_it",
        "supported_major_versions": "only_major_versions",
    }
    old.rename(new)
    (tmp_path / "flashinfer/jit/comm.py").rename(tmp_path / "flashinfer/jit/elsewhere.py")
    (tmp_path / "sglang/srt/server_args.py").rename(tmp_path / "sglang/srt/arg_groups_checks.py")
    for path in tmp_path.rglob("*.py"):
        text = path.read_text()
        for name, other in renamed.items():
            text = text.replace(name, other)
        path.write_text(text)
    found = gates(tmp_path)
    gate = the_gate(found)
    assert (gate.gives, gate.file, gate.function) == ("closed", "sglang/srt/one/two/choice.py", "one_pass")
    assert gate.values["_hopper"] == "False"
    assert {gate.kind for gate in found if gate.gives == "raises"} == {"refuses", "compiles for"}
    assert the_gate(gates(tmp_path, 90)).gives == "depends"
    assert [gate.function for gate in gates(tmp_path, flag="two_batch_overlap") if gate.gives == "raises"] == ["ServerArgs._look"]


NOVEL = {
    "sglang/__init__.py": "",
    "sglang/version.py": '__version__ = "0.9.0"\n',
    "sglang/srt/hardware.py": """
def chip():
    return torch.cuda.get_device_capability()

def is_newest():
    major, minor = chip(), 0
    return chip() >= (10, 0)

ALLOWED = {9: [4, 8], 10: [8]}
""",
    "sglang/srt/mesh.py": """
from sglang.srt.hardware import ALLOWED, chip as which, is_newest

class CustomAllReduceV9:
    _SIZES = (2, 4, 8)

    def __init__(self, group):
        self.world_size = dist.get_world_size(group)
        self.major = torch.cuda.get_device_capability()[0]
        sizes = ALLOWED.get(self.major)
        if sizes is None:
            logger.warning("custom all_reduce: architecture not listed")
            return
        if self.world_size not in CustomAllReduceV9._SIZES:
            logger.warning("custom all_reduce: bad world size")
            return

def custom_all_reduce_wanted(args):
    return not args.disable_custom_all_reduce and which()[0] == 12 and is_newest()
""",
}


def test_a_version_that_no_rule_names_is_read_like_any_other(tmp_path: Path) -> None:
    small_package(tmp_path, NOVEL)
    on_120 = {gate.line: gate for gate in gates(tmp_path, 120, "custom_all_reduce")}
    assert [gate.gives for gate in on_120.values() if gate.condition == "sizes is None"] == ["closed"]
    assert [gate.gives for gate in on_120.values() if "_SIZES" in gate.condition] == ["not reached"]
    on_90 = gates(tmp_path, 90, "custom_all_reduce")
    assert [gate.gives for gate in on_90 if gate.condition == "sizes is None"] == ["open"]
    wanted = {capability: gates(tmp_path, capability, "custom_all_reduce") for capability in (90, 100, 120)}
    assert {capability: next(gate.gives for gate in found if gate.kind == "decides") for capability, found in wanted.items()} == {
        90: "closed",
        100: "closed",
        120: "open",
    }


def test_a_table_without_this_architecture_ends_in_a_key_error(tmp_path: Path) -> None:
    text = """
SIZES = {9: [8], 10: [8]}

class TorchSymmMemCommunicator:
    def __init__(self, group):
        self.capability = torch.cuda.get_device_capability()[0]
        if dist.get_world_size(group) not in SIZES[self.capability]:
            logger.warning("TorchSymmMem: bad world size")
            return
"""
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/mem.py": text})
    assert [(gate.gives, gate.effect) for gate in gates(tmp_path, 120, "torch_symm_mem")] == [("raises", "KeyError: 12 (SIZES has 9, 10)")]
    assert [gate.gives for gate in gates(tmp_path, 90, "torch_symm_mem")] == ["depends"]


def test_a_condition_that_only_mentions_the_flag_is_kept_apart(tmp_path: Path) -> None:
    text = "def other(cfg):\n    if cfg.size != 4 or cfg.enable_two_batch_overlap:\n        return None\n"
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/somewhere.py": text})
    found = gates(tmp_path, flag="two_batch_overlap")
    assert [gate.own for gate in found] == [False]
    assert verdict_of(found) == "no gate found"


def test_a_refusal_inside_an_unrelated_class_depends_on_its_use(tmp_path: Path) -> None:
    text = "class Recorder:\n    def __init__(self, args):\n        assert not args.enable_two_batch_overlap, 'Recorder knows no TBO'\n"
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/somewhere.py": text})
    found = gates(tmp_path, flag="two_batch_overlap")
    assert [(gate.gives, gate.depends_on) for gate in found] == [("depends", "whether Recorder is used")]


def test_a_missing_module_closes_the_flag_only_where_that_can_be_told(tmp_path: Path) -> None:
    text = """
class PyMscclppCommunicator:
    def __init__(self):
        try:
            import mscclpp
        except ImportError:
            self.available = False
            return
"""
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/pymscclpp.py": text})
    assert [gate.gives for gate in gates(tmp_path, flag="mscclpp") if gate.kind == "needs module"] == ["depends"]
    packages = packages_in(small_package(tmp_path, {"mscclpp/__init__.py": ""}))
    assert [gate.gives for gate in gates(tmp_path, flag="mscclpp", packages=packages) if gate.kind == "needs module"] == ["open"]


def test_files_that_do_not_parse_are_passed_over(tmp_path: Path) -> None:
    small_package(source_tree("0.5.9", tmp_path), {"sglang/srt/broken.py": "def apply_flashinfer_allreduce_fusion(:\n"})
    assert the_gate(gates(tmp_path)).gives == "closed"


def test_json_and_text_say_the_same(tmp_path: Path) -> None:
    source_tree("0.5.15.post1", tmp_path)
    answer = audit_engine(tmp_path, capability=120, world_size=8, link="pcie")
    fusion = next(flag for flag in answer["flags"] if flag["flag"] == "allreduce_fusion")
    assert answer["packages"] == {"sglang": "0.5.15.post1", "flashinfer": "0.6.12"}
    assert fusion["verdict"] == "refused"
    text = answer["text"]
    assert "allreduce_fusion" in text and ": refused" in text
    for gate in fusion["gates"]:
        assert (f"{gate['file']}:{gate['line']}" in text) is (gate["own"] and gate["gives"] != "not reached")
    assert "capability 12.0, 8 GPUs, link pcie" in text


def test_options_of_the_arm_are_taken_by_their_option_names(tmp_path: Path) -> None:
    source_tree("0.5.15.post1", tmp_path)
    answer = audit_engine(tmp_path, capability=120, world_size=8, options={"moe-a2a-backend": "deepep"}, flags=["two_batch_overlap"])
    assert {flag["verdict"] for flag in answer["flags"]} == {"open"}


def test_what_cannot_be_audited_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sglang package"):
        audit(tmp_path, 120, 8)
    with pytest.raises(UserError, match=r"engine\.python="):
        audit_engine(None, capability=120, world_size=8)
    with pytest.raises(UserError, match="choices: allreduce_fusion"):
        audit(source_tree("0.5.9", tmp_path), 120, 8, flags=["fusion"])


def test_nothing_found_is_reported_as_nothing() -> None:
    assert audit_json([], packages={}, capability=90, world_size=1, link=None)["flags"] == []
    assert audit_text([], packages={}, capability=90, world_size=1, link=None).count("\n") == 0
