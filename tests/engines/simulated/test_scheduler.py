"""Queueing, batching, chunked prefill, the KV pool and the prefix cache, in virtual time."""

import pytest

from runner.engines.simulated.cost import cost_model
from runner.engines.simulated.force import GRAPH_SIZES
from runner.engines.simulated.in_force import Force
from runner.engines.simulated.noise import no_noise
from runner.engines.simulated.prefix import BLOCK, PrefixCache
from runner.engines.simulated.scheduler import Job, Limits, Scheduler, Step
from runner.engines.simulated.shapes import Model, Node
from tests.engines.simulated.support import GLM5, PCIE_NODE


def scheduler(pool: int = 1_000_000, running: int = 512, chunk: int = 8192, cache: bool = True, draft: int = 1) -> Scheduler:
    model = Model.of(GLM5.model_copy(update={"draft_tokens": draft}).model_dump(mode="json"))
    cost = cost_model(model, Node.of(PCIE_NODE.model_dump(mode="json")), Force(tp=8, graph_sizes=GRAPH_SIZES), {}, {}, {})
    return Scheduler(Limits(pool, running, chunk), cost, no_noise(), PrefixCache(cache))


def jobs(count: int, prompt: int = 256, output: int = 32) -> list[Job]:
    return [Job(range(place * 100_000, place * 100_000 + prompt), output) for place in range(count)]


def run(one: Scheduler) -> list[Step]:
    steps = []
    while (step := one.next_step()) is not None:
        steps.append(step)
        assert one.used_tokens + one.cache.evictable <= one.limits.pool_tokens
        one.finish(step)
        assert len(steps) < 20_000
    return steps


def test_everybody_gets_all_tokens_and_the_pool_is_given_back() -> None:
    one, batch = scheduler(), jobs(40)
    for job in batch:
        one.add(job)
    run(one)
    assert all(job.generated == 32 for job in batch)
    assert one.used_tokens == 0
    assert one.totals.generated == 40 * 32
    assert one.totals.prompt == 40 * 256


def test_prefill_comes_first_and_is_cut_into_chunks() -> None:
    one = scheduler(chunk=1000)
    for job in jobs(2, prompt=2500, output=2):
        one.add(job)
    steps = run(one)
    prefills = [step for step in steps if step.kind == "prefill"]
    assert [step.new_tokens for step in prefills] == [1000, 1000, 1000, 1000, 1000]
    assert [len(step.jobs) for step in prefills] == [0, 0, 1, 0, 1]
    assert steps[-1].kind == "decode"


def test_no_more_requests_run_than_allowed() -> None:
    one = scheduler(running=2)
    for job in jobs(5):
        one.add(job)
    steps = run(one)
    assert max(step.running for step in steps if step.kind == "decode") == 2
    assert one.totals.generated == 5 * 32


def test_a_full_pool_retracts_and_still_serves_everybody() -> None:
    one, batch = scheduler(pool=6000), jobs(20, prompt=100, output=400)
    for job in batch:
        one.add(job)
    steps = run(one)
    assert one.totals.retracted > 0
    assert one.retractions[0].requests >= 1
    assert one.retractions[0].new_ratio >= one.retractions[0].old_ratio
    assert all(job.generated == 400 for job in batch)
    assert any(job.retractions for job in batch)
    assert any(step.queued for step in steps)


def test_an_equal_prompt_is_found_in_the_cache_but_for_its_last_tokens() -> None:
    one = scheduler()
    first, second, other = jobs(1, prompt=100)[0], jobs(1, prompt=100)[0], jobs(2, prompt=100)[1]
    for job in (first, second, other):
        one.add(job)
        run(one)
    assert first.cached == 0
    assert second.cached == 96
    assert other.cached == 0
    one.cache.clear()
    again = jobs(1, prompt=100)[0]
    one.add(again)
    run(one)
    assert again.cached == 0


def test_a_shared_prefix_is_shared_while_its_holder_runs() -> None:
    one = scheduler()
    common = list(range(64))
    first, second = Job([*common, *range(1000, 1032)], 50), Job([*common, *range(2000, 2032)], 50)
    one.add(first)
    step = one.next_step()
    assert step is not None
    one.finish(step)
    one.add(second)
    run(one)
    assert second.cached == 64


def test_old_blocks_give_way() -> None:
    one = scheduler(pool=2000)
    for job in jobs(30, prompt=256, output=4):
        one.add(job)
        run(one)
    assert 0 < one.cache.evictable <= 2000
    assert one.cache.evictable % BLOCK == 0


def test_an_aborted_request_leaves_nothing_behind() -> None:
    one, (waiting, running) = scheduler(running=1), jobs(2)
    one.add(running)
    one.add(waiting)
    step = one.next_step()
    assert step is not None
    one.abort(waiting)
    one.abort(running)
    one.finish(step)
    assert one.idle
    assert one.used_tokens == 0
    assert one.totals.aborted == 2


@pytest.mark.parametrize(("draft", "steps"), [(1, 99), (4, 36)])
def test_drafts_bring_more_than_one_token_a_step(draft: int, steps: int) -> None:
    one, (job,) = scheduler(draft=draft), jobs(1, output=100)
    one.add(job)
    assert sum(step.kind == "decode" for step in run(one)) == pytest.approx(steps, abs=1)
    assert job.generated == 100


def test_batches_beyond_the_graphs_run_eager() -> None:
    one = scheduler()
    one.cost = cost_model(one.cost.model, one.cost.node, Force(tp=8, graph_sizes=(1, 2, 4)), {}, {}, {})
    for job in jobs(6, output=4):
        one.add(job)
    assert {step.graph for step in run(one) if step.kind == "decode"} == {False}
    assert one.totals.decode_eager > 0
