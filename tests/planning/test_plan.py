"""Whole plans for three engine versions: they differ as the versions do, and every excluded cell has its reason."""

from collections import Counter
from collections.abc import Callable

import pytest

from runner.errors import UserError
from runner.planning.build import build_plan
from runner.planning.candidates import EXPECTED_INERT
from runner.planning.show import plan_json, plan_text
from runner.records.plan import Cell, Plan

from .conftest import Compose

PlanOf = Callable[..., Plan]
VERSIONS = ("0.5.9", "0.5.10", "0.5.11", "0.5.13.post1", "0.5.14", "0.5.15.post1", "0.5.18", "0.5.21", "0.5.22", "0.5.23")


def statuses(plan: Plan) -> Counter[str]:
    return Counter(cell.status for cell in plan.cells)


def cell(plan: Plan, **levels: str) -> Cell:
    found = [one for one in plan.cells if levels.items() <= one.levels.items()]
    return found[0]


def test_legacy_mscclpp_limits_are_arms_in_0_5_9(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.9")
    assert (plan.raw_cells, len(plan.cells), len(plan.arms)) == (48, 32, 16)
    assert statuses(plan) == {"ARM": 16, "REJECTED": 16}
    arm = plan.arm("mscclpp=on+mscclpp_max_bytes=256KB")
    assert arm.env["SGLANG_MSCCLPP_MAX_BYTES"] == "256KB"
    assert arm.options["enable-mscclpp"] is True
    assert "SGLANG_AUTO_NUMA_BIND" not in arm.env


@pytest.mark.parametrize(("version", "base"), [("0.5.14", "0.5.14"), ("0.5.15.post1", "0.5.15"), ("0.5.23", "0.5.23")])
def test_later_versions_never_read_the_limit(plan_of: PlanOf, version: str, base: str) -> None:
    plan = plan_of("overlap_grid", version)
    assert statuses(plan) == {"ARM": 8, "DUPLICATE": 8, "REJECTED": 16}
    duplicates = [one for one in plan.cells if one.status == "DUPLICATE"]
    assert all(f"{base} never reads SGLANG_MSCCLPP_MAX_BYTES" in one.reason for one in duplicates)
    assert all(one.arm in {arm.name for arm in plan.arms} for one in duplicates)
    assert all("mscclpp_max_bytes" not in arm.levels and "SGLANG_MSCCLPP_MAX_BYTES" not in arm.env for arm in plan.arms)


@pytest.mark.parametrize("version", VERSIONS)
def test_two_batch_overlap_is_rejected_and_single_is_expected_inert_everywhere(plan_of: PlanOf, version: str) -> None:
    plan = plan_of("overlap_grid", version)
    for one in plan.cells:
        if one.levels["two_batch_overlap"] == "on":
            assert (one.status, one.refused_at, one.arm) == ("REJECTED", "rule", None)
            assert one.sentence.startswith("When enabling two batch overlap")
    assert any("expected INERT: moe_a2a_backend == none" in text for text in plan.arm("single_batch_overlap=on").expect)


def test_the_sentence_is_that_of_the_version(plan_of: PlanOf) -> None:
    said = {
        version: cell(plan_of("overlap_grid", version), two_batch_overlap="on").sentence for version in ("0.5.9", "0.5.15.post1", "0.5.23")
    }
    assert said["0.5.9"] == "When enabling two batch overlap, moe_a2a_backend cannot be 'none'."
    assert "--enable-dp-attention is required (DeepSeek-V4 non-EP DP TBO path)." in said["0.5.15.post1"]
    assert "attention DP (--attn-dp-size) is required" in said["0.5.23"]


def test_the_baseline_leaves_nothing_to_the_engine(plan_of: PlanOf) -> None:
    old, middle, new = (plan_of("overlap_grid", version).arms[0] for version in ("0.5.9", "0.5.13.post1", "0.5.23"))
    for arm in (old, middle, new):
        assert arm.options["disable-shared-experts-fusion"] is True
        assert arm.options["enable-metrics"] is True
        assert arm.options["tp-size"] == 8
        assert arm.options["max-total-tokens"] >= 128 * (256 + 128)
        assert "random-seed" in arm.options
    assert old.options["cuda-graph-bs"] == middle.options["cuda-graph-bs"] == new.options["cuda-graph-bs-decode"]
    assert "cuda-graph-bs" not in new.options
    assert "cuda-graph-bs-decode" not in old.options
    assert "enforce-disable-flashinfer-allreduce-fusion" not in old.options
    assert middle.options["enforce-disable-flashinfer-allreduce-fusion"] is True
    assert new.options["enforce-disable-flashinfer-allreduce-fusion"] is True
    assert middle.options["disable-piecewise-cuda-graph"] is True
    assert new.options["cuda-graph-backend-prefill"] == "disabled"
    assert new.env["SGLANG_AUTO_NUMA_BIND"] == "0"
    assert (old.options["kv-cache-dtype"], new.options["kv-cache-dtype"]) == ("bf16", "fp8_e4m3")


def test_the_patched_fusion_sets_what_its_version_calls_it(plan_of: PlanOf) -> None:
    old, middle, new = (plan_of("overlap_grid", version).arm("sm120_fusion=patched") for version in ("0.5.9", "0.5.11", "0.5.23"))
    assert old.patches == middle.patches == new.patches == ("sm120_fusion",)
    assert old.options["enable-flashinfer-allreduce-fusion"] is True
    assert middle.options["enable-flashinfer-allreduce-fusion"] is True
    assert new.options["flashinfer-allreduce-fusion-backend"] == "trtllm"
    for arm in (old, middle, new):
        assert "enforce-disable-flashinfer-allreduce-fusion" not in arm.options


def test_limits_between_which_no_batch_falls_are_one_arm(plan_of: PlanOf) -> None:
    plan = plan_of("mscclpp_bytes", "0.5.9")
    assert [arm.levels.get("mscclpp_max_bytes") for arm in plan.arms] == [None, "256KB", "1MB", "2MB"]
    reason = cell(plan, mscclpp_max_bytes="8MB").reason
    assert "no measured batch falls between 2MB and 8MB" in reason
    assert "128 rows x 12,288 B = 1,572,864 B" in reason


def test_draft_tokens_move_the_limits(plan_of: PlanOf) -> None:
    plan = plan_of("mscclpp_bytes", "0.5.9", "model.draft_tokens=4")
    # 128 streams are 512 rows now, 6 MB: over 4MB, under 8MB; one stream is 4 rows.
    assert [arm.levels.get("mscclpp_max_bytes") for arm in plan.arms] == [None, "256KB", "1MB", "4MB", "8MB"]


def test_a_limit_that_lets_nothing_through_is_the_flag_off(plan_of: PlanOf) -> None:
    plan = plan_of("mscclpp_bytes", "0.5.9", "phases=[decode_c64,decode_c128]", "grid.mscclpp_max_bytes=[256KB,1MB,2MB]")
    smallest = cell(plan, mscclpp_max_bytes="256KB")
    assert (smallest.status, smallest.arm) == ("DUPLICATE", "baseline")
    assert "lets no measured message through" in smallest.reason
    assert "786,432" in smallest.reason


def test_a_cap_on_running_requests_caps_the_batch(plan_of: PlanOf) -> None:
    plan = plan_of("mscclpp_bytes", "0.5.9", "+pins.max-running-requests=16")
    assert [arm.levels.get("mscclpp_max_bytes") for arm in plan.arms] == [None, "256KB"]


def test_custom_all_reduce_does_nothing_on_eight_pcie_gpus(plan_of: PlanOf) -> None:
    overrides = ("+baseline.custom_all_reduce=on", "+grid.custom_all_reduce=['on','off']", "~grid.mscclpp_max_bytes")
    on_pcie = plan_of("overlap_grid", "0.5.23", *overrides)
    off = [one for one in on_pcie.cells if one.levels["custom_all_reduce"] == "off" and one.status != "REJECTED"]
    assert off
    assert all(one.status == "DUPLICATE" and "more than two PCIe-only GPUs" in one.reason for one in off)


def test_environment_variables_of_their_version(plan_of: PlanOf) -> None:
    unread, absent, real = (cell(plan_of("nightly", version), pcie_ipc_allreduce="on") for version in ("0.5.15.post1", "0.5.21", "0.5.23"))
    assert (unread.status, unread.arm) == ("DUPLICATE", "baseline")
    assert "0.5.15 never reads SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" in unread.reason
    assert (absent.status, "pcie_ipc_comm" in absent.reason) == ("DUPLICATE", True)
    assert real.status == "ARM"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_excluded_cell_has_its_reason(plan_of: PlanOf, version: str) -> None:
    plan = plan_of("overlap_grid", version)
    for one in plan.cells:
        assert one.status == "ARM" or one.reason
    text = plan_text(plan)
    assert "SIMULATED" in text
    for one in plan.cells:
        assert one.status == "ARM" or one.reason in text


def test_json_has_the_documented_keys(plan_of: PlanOf) -> None:
    answer = plan_json(plan_of("overlap_grid", "0.5.9"))
    assert {"cells", "arms", "blocks", "gpu_minutes", "not_resolvable"} <= answer.keys()
    assert set(answer["gpu_minutes"]) == {"estimate", "low", "high"}
    assert {"levels", "status", "arm", "reason", "refused_at"} <= answer["cells"][0].keys()
    assert answer["gpu_minutes"]["low"] <= answer["gpu_minutes"]["estimate"] <= answer["gpu_minutes"]["high"]


def test_a_newer_version_is_planned_and_said_to_be_unconfirmed(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.6.2")
    text = " ".join(plan.unconfirmed)
    for name in ("two_batch_overlap", "mscclpp", "sm120_fusion"):
        assert f"{name}: its rules were read from engine versions" in text
    assert "whether 0.6.2 reads SGLANG_MSCCLPP_MAX_BYTES" in text
    assert plan_of("overlap_grid", "0.5.23").unconfirmed == ()


def test_a_model_that_the_version_cannot_serve(plan_of: PlanOf) -> None:
    with pytest.raises(UserError, match=r"model glm5_nvfp4 has no command for engine 0.5.8.post1"):
        plan_of("overlap_grid", "0.5.8.post1")


def test_hypotheses_are_primary_metrics_by_kind_of_phase(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.15.post1")
    assert len(plan.hypotheses) == 7 * 5
    assert {(one.phase, one.metric) for one in plan.hypotheses} == {
        *((f"decode_c{streams}", "tpot_p50_ms") for streams in (1, 16, 64, 128)),
        ("prefill", "ttft_p50_ms"),
    }


def test_noise_floor_is_the_baseline_several_times(plan_of: PlanOf) -> None:
    plan = plan_of("noise_floor", "0.5.9")
    assert [arm.name for arm in plan.arms] == ["baseline", "A/A 1", "A/A 2", "A/A 3"]
    assert len({arm.configuration_hash for arm in plan.arms}) == 1
    assert all(len(row) == 4 for row in plan.blocks)
    assert plan.hypotheses == ()


def test_identity_names_what_changed(compose: Compose) -> None:
    settings = compose("+experiment=overlap_grid")

    def identity(**changes: object) -> dict[str, str]:
        changed = settings.model_copy(update=changes)
        return build_plan(changed, engine_kind="simulated", engine_version="0.5.9").identity

    first = identity()
    assert identity() == first
    assert identity(protocol=settings.protocol.model_copy(update={"gpu_minutes": 20.0})) == first
    simulation = settings.engine.simulation.model_copy(update={"request_noise_pct": 2.5})
    changes: dict[str, dict[str, object]] = {
        "model": {"model": settings.model.model_copy(update={"hidden_size": 5120})},
        "workload": {"workload": settings.workload.model_copy(update={"seed": 8})},
        "protocol": {"protocol": settings.protocol.model_copy(update={"alpha": 0.1})},
        "node": {"node": settings.node.model_copy(update={"link_gb_s": 32.0})},
        "grid": {"grid": {**settings.grid, "single_batch_overlap": ("off",)}},
        "engine_settings": {"engine": settings.engine.model_copy(update={"simulation": simulation})},
    }
    for key, change in changes.items():
        assert identity(**change)[key] != first[key], key


def test_what_only_a_rule_refuses_can_be_launched_all_the_same(plan_of: PlanOf) -> None:
    plan = plan_of("cpu_flags", "0.5.15.post1", kind="sglang")
    assert {arm.name for arm in plan.arms} == {
        "baseline",
        "max_running_requests=2",
        "mscclpp=on",
        "two_batch_overlap=on",
        "no_such_option=on",
    }
    assert any("a rule expects a refusal" in text for text in plan.arm("two_batch_overlap=on").expect)
    assert plan.arm("max_running_requests=2").options["max-running-requests"] == 2
    assert {(one.phase, one.metric) for one in plan.hypotheses} == {("decode_c8", "ttft_p50_ms")}


@pytest.mark.parametrize(
    ("experiment", "version"),
    [
        ("smoke", "0.5.9"),
        ("overlap_grid", "0.5.9"),
        ("mscclpp_bytes", "0.5.9"),
        ("noise_floor", "0.5.9"),
        ("cpu_flags", "0.5.15.post1"),
        ("h200_allreduce", "0.5.15.post1"),
        ("h200_single", "0.5.15.post1"),
        ("h200_x8", "0.5.13.post1"),
        ("nightly", "0.5.23"),
    ],
)
def test_every_shipped_experiment_plans(plan_of: PlanOf, experiment: str, version: str) -> None:
    plan = plan_of(experiment, version, kind="sglang")
    assert plan.arms[0].name == plan.baseline
    assert len(plan.blocks) >= 1
    assert {name for row in plan.blocks for name in row} == {arm.name for arm in plan.arms}


def test_a_real_engine_without_a_noise_floor_starts_with_pairs(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.15.post1", kind="sglang")
    assert all("A/A" in row for row in plan.blocks[:3])
    assert not any("A/A" in row for row in plan.blocks[3:])
    assert not any(one.arm == "A/A" for one in plan.hypotheses)
    assert any("no noise floor" in note for note in plan.notes)


def test_an_attached_server_has_one_arm(plan_of: PlanOf) -> None:
    with pytest.raises(UserError, match=r"engine=attached .* has one arm"):
        plan_of("overlap_grid", "0.5.15.post1", kind="attached")
    assert len(plan_of("noise_floor", "0.5.15.post1", "aa=false", kind="attached").arms) == 1


@pytest.mark.parametrize(
    ("version", "inert", "words"), [("0.5.9", 8, ""), ("0.5.15.post1", 6, "says nothing then"), ("0.5.23", 6, "a warning")]
)
def test_of_the_arms_that_the_rules_leave_few_differ(plan_of: PlanOf, version: str, inert: int, words: str) -> None:
    """SBO without an all-to-all does nothing; neither does MSCCL++ from 0.5.14 on without its package."""
    plan = plan_of("overlap_grid", version, absent={"mscclpp"})
    expected = [arm for arm in plan.arms if any(EXPECTED_INERT in text for text in arm.expect)]
    assert len(expected) == inert
    assert f"{inert} of these arms are expected to equal another one" in plan_text(plan)
    assert any(words in text for arm in plan.arms for text in arm.expect)
    assert version == "0.5.9" or not any("skips an all-reduce" in text for arm in plan.arms for text in arm.expect)
    unknown = plan_of("overlap_grid", version)
    assert sum(any(EXPECTED_INERT in text for text in arm.expect) for arm in unknown.arms) == (8 if version == "0.5.9" else 4)


def test_an_attached_server_is_asked_for_nothing_but_what_is_written_of_it(plan_of: PlanOf) -> None:
    words = ("aa=false", "engine=attached", "engine.url=http://127.0.0.1:1", "+engine.options.tp-size=8")
    (arm,) = plan_of("noise_floor", "0.5.15.post1", *words, kind="attached").arms
    assert (arm.options, arm.env, arm.patches) == ({"tp-size": 8}, {}, ())


def test_trust_in_the_code_beside_the_weights_is_off_and_shown_when_on(plan_of: PlanOf) -> None:
    assert not any("trust-remote-code" in arm.options for arm in plan_of("smoke", "0.5.9").arms)
    plan = plan_of("smoke", "0.5.9", "+model.options.trust-remote-code=true")
    assert any("--trust-remote-code is ON for every arm" in note for note in plan.notes)


def test_what_the_engine_makes_at_its_start_is_not_foreseen(plan_of: PlanOf) -> None:
    """`cuda_graph_config.decode.backend` is no option: its absence among the options says nothing about the arm that sets it."""
    plan = plan_of("h200_single", "0.5.15.post1")
    assert plan.arm("cuda_graph_batch_sizes=none").expect == ()
    assert plan.arm("single_batch_overlap=on").expect != ()


def test_a_limit_goes_with_the_flag_that_does_nothing_here(plan_of: PlanOf) -> None:
    """Legacy MSCCL++ supports 8 and 16 ranks only: on four it is off, and its limits are no arms of their own."""
    plan = plan_of("overlap_grid", "0.5.9", "node.gpus=4")
    assert all("mscclpp_max_bytes" not in arm.levels and "SGLANG_MSCCLPP_MAX_BYTES" not in arm.env for arm in plan.arms)
    limits = [one for one in plan.cells if one.levels.get("mscclpp") == "on" and one.status != "REJECTED"]
    assert limits and all(one.status == "DUPLICATE" and one.reason for one in limits)
