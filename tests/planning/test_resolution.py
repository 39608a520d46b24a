"""The engine's word over the rules': merged arms, refusals with its own sentence, and questions it cannot answer."""

from collections.abc import Callable

import pytest

from runner.engines.resolve import Resolution, ResolveRequest
from runner.errors import UserError
from runner.records.plan import Plan

PlanOf = Callable[..., Plan]
TBO = "When enabling two batch overlap without an EP a2a backend (moe_a2a_backend='none'), --enable-dp-attention is required"


def answering(
    refuse: dict[str, tuple[str, str]] | None = None, same: tuple[str, ...] = (), **more: object
) -> Callable[[list[ResolveRequest]], list[Resolution]]:
    """An engine that refuses words of argv with (kind, sentence), and that drops the words in `same` while resolving."""

    def resolve(requests: list[ResolveRequest]) -> list[Resolution]:
        answers = []
        for request in requests:
            hit = next((said for word, said in (refuse or {}).items() if word in request.argv), None)
            if hit is not None:
                answers.append(Resolution(key=request.key, ok=False, kind=hit[0], error=hit[1]))
            else:
                kept = [word for word in request.argv if word not in same]
                answers.append(Resolution.model_validate({"key": request.key, "ok": True, "resolved": {"argv": kept}, **more}))
        return answers

    return resolve


def test_the_engines_own_sentence_stands_beside_the_rule(plan_of: PlanOf) -> None:
    refuse = {"--enable-two-batch-overlap": ("rejected_argument_combination", TBO + " (as the engine says)")}
    plan = plan_of("overlap_grid", "0.5.15.post1", resolve=answering(refuse))
    refused = [one for one in plan.cells if one.levels["two_batch_overlap"] == "on"]
    assert all(one.status == "REJECTED" and one.sentence == TBO + " (as the engine says)" for one in refused)
    assert all(arm.resolved_by == "engine" for arm in plan.arms)


def test_what_the_engine_refuses_is_rejected_at_resolve(plan_of: PlanOf) -> None:
    refuse = {
        "--no-such-option": ("unknown_cli_option", "error: unrecognized arguments: --no-such-option"),
        "--enable-two-batch-overlap": ("rejected_argument_combination", TBO),
    }
    plan = plan_of("cpu_flags", "0.5.15.post1", kind="sglang", resolve=answering(refuse))
    by_factor = {name: one for one in plan.cells for name, level in one.levels.items() if plan.baseline_levels.get(name) != level}
    for name, sentence in (("no_such_option", "unrecognized arguments"), ("two_batch_overlap", "When enabling")):
        one = by_factor[name]
        assert (one.status, one.refused_at, sentence in one.sentence) == ("REJECTED", "resolve", True)
    assert {arm.name for arm in plan.arms} == {"baseline", "max_running_requests=2", "mscclpp=on"}


def test_equal_resolved_configurations_are_one_arm(plan_of: PlanOf) -> None:
    plan = plan_of("overlap_grid", "0.5.15.post1", resolve=answering(same=("--enable-single-batch-overlap",)))
    inert = [one for one in plan.cells if one.levels["single_batch_overlap"] == "on" and one.status != "REJECTED"]
    assert all(one.status == "DUPLICATE" for one in inert)
    assert any("resolves to the same engine configuration" in one.reason for one in inert)
    assert len(plan.arms) == 4


def test_equality_seen_without_the_nodes_gpu_merges_nothing(plan_of: PlanOf) -> None:
    blind = answering(same=("--enable-single-batch-overlap",), capability_confirmed=False)
    plan = plan_of("overlap_grid", "0.5.15.post1", resolve=blind)
    assert len(plan.arms) == 8
    assert any("resolved without a GPU of capability 120" in text for text in plan.unconfirmed)


def test_an_engine_that_cannot_say_refuses_nothing(plan_of: PlanOf) -> None:
    plan = plan_of("smoke", "0.5.9", resolve=answering({"--enable-mscclpp": ("timeout", "no answer within 300 s")}))
    assert len(plan.arms) == 2
    assert any("not resolved (timeout" in text for text in plan.unconfirmed)


def test_a_refused_baseline_is_the_users_to_mend(plan_of: PlanOf) -> None:
    with pytest.raises(UserError, match="the engine refuses the baseline: no such quantization"):
        plan_of("smoke", "0.5.9", resolve=answering({"--quantization": ("rejected_argument_combination", "no such quantization")}))


def test_the_installed_source_decides_what_is_read(plan_of: PlanOf) -> None:
    asked: list[str] = []

    def reads(names: list[str]) -> dict[str, bool | None]:
        asked.extend(names)
        return dict.fromkeys(names, False)

    plan = plan_of("overlap_grid", "0.5.9", reads=reads)
    assert "SGLANG_MSCCLPP_MAX_BYTES" in asked
    assert any("0.5.9 never reads SGLANG_MSCCLPP_MAX_BYTES" in one.reason for one in plan.cells)
    assert len(plan.arms) == 8


def test_an_unknown_version_is_asked_where_the_rules_do_not_reach(plan_of: PlanOf) -> None:
    alone = plan_of("overlap_grid", "0.6.2")
    assert sum(one.status == "REJECTED" for one in alone.cells) == 16
    asked = plan_of("overlap_grid", "0.6.2", resolve=answering())
    assert not any(one.status == "REJECTED" for one in asked.cells)
    assert any("two_batch_overlap=on" in text and "not confirmed" in text for text in asked.unconfirmed)
