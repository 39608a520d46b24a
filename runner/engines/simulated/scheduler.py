"""Who runs when: continuous batching, chunked prefill, KV pool with retraction. Without a clock and without noise of its own,
so that the server (real time) and `truth.py` (virtual time) run the very same code.

As in SGLang: prefill goes first, new requests reserve all their output, running ones a share (`new_token_ratio`) that sinks with
every decode step and jumps when the pool runs full and requests are retracted."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.engines.simulated.cost import CostModel
from runner.engines.simulated.noise import StepNoise
from runner.engines.simulated.prefix import BLOCK, PrefixCache

RATIO_START = 0.7
RATIO_LEAST = 0.098
RATIO_STEPS = 600
RESERVE_AT_MOST = 4096
ACCEPTED_SHARE = 0.6  # of draft tokens beyond the first, with speculative decoding


@dataclass(frozen=True)
class Limits:
    """Tokens of the KV pool, requests that may run together, tokens of one prefill pass."""

    pool_tokens: int
    max_running: int
    chunk_tokens: int


class Job:
    """One request as the scheduler sees it. `generated` counts output tokens, `computed` tokens whose KV entries exist."""

    __slots__ = (
        "aborted",
        "blocks",
        "cached",
        "computed",
        "credit",
        "generated",
        "ids",
        "output",
        "owned",
        "prompt",
        "retractions",
        "sink",
        "target",
    )

    def __init__(self, ids: Sequence[int], output: int, sink: object = None) -> None:
        self.ids = ids
        self.prompt = len(ids)
        self.output = output
        self.sink = sink
        self.generated = 0
        self.computed = 0
        self.target = self.prompt
        self.cached = 0
        self.owned = 0
        self.credit = 0.0
        self.retractions = 0
        self.blocks: list[int] = []
        self.aborted = False

    @property
    def done(self) -> bool:
        return self.aborted or self.generated >= self.output


@dataclass
class Step:
    """One pass. `jobs` get a token at its end (prefill: those whose prompt is complete); counts are for the log line."""

    kind: str
    seconds: float
    jobs: list[Job]
    new_sequences: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    running: int = 0
    queued: int = 0
    pending: int = 0
    graph: bool = False
    chunked: Job | None = None


@dataclass
class Totals:
    """Counters since the start, for /metrics."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    requests: int = 0
    aborted: int = 0
    retracted: int = 0
    prefill_passes: int = 0
    decode_graph: int = 0
    decode_eager: int = 0


@dataclass
class Retraction:
    """One time that the pool ran full."""

    requests: int
    tokens: int
    old_ratio: float
    new_ratio: float


@dataclass
class Scheduler:
    """`next_step` plans a pass, `finish` ends it; between the two only `add` and `abort` may be called."""

    limits: Limits
    cost: CostModel
    noise: StepNoise
    cache: PrefixCache
    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    chunked: Job | None = None
    totals: Totals = field(default_factory=Totals)
    retractions: list[Retraction] = field(default_factory=list)
    owned: int = 0
    ratio: float = RATIO_START

    def __post_init__(self) -> None:
        self._accept = 1.0 + ACCEPTED_SHARE * (self.cost.model.draft_tokens - 1)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.chunked)

    @property
    def used_tokens(self) -> int:
        """Tokens that live requests hold."""
        return self.owned + self.cache.locked

    @property
    def free_tokens(self) -> int:
        """Tokens that can be had, by eviction too."""
        return self.limits.pool_tokens - self.used_tokens

    def fits(self, prompt: int) -> bool:
        """Can a prompt of that length ever be served?"""
        return prompt + 1 <= self.limits.pool_tokens

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def abort(self, job: Job) -> None:
        """Takes the request out wherever it is."""
        if job.aborted:
            return
        job.aborted = True
        self.totals.aborted += 1
        if job in self.waiting:
            self.waiting.remove(job)
        if job in self.running:
            self.running.remove(job)
        if self.chunked is job:
            self.chunked = None
        self._release(job)

    def next_step(self) -> Step | None:
        """The next pass, or None when there is nothing to do."""
        return self._prefill() or self._decode()

    def finish(self, step: Step) -> list[tuple[Job, int]]:
        """Ends a pass: (request, new tokens) in the order of the batch. Requests that are done leave the batch."""
        if step.kind == "prefill":
            return self._finish_prefill(step)
        new: list[tuple[Job, int]] = []
        finished = False
        self.ratio = max(RATIO_LEAST, self.ratio - (RATIO_START - RATIO_LEAST) / RATIO_STEPS)
        for job in step.jobs:
            if job.aborted:
                continue
            count = self._tokens_of(job)
            job.generated += count
            job.owned += count
            job.computed += count
            self.owned += count
            self.totals.generated += count
            finished = finished or job.generated >= job.output
            new.append((job, count))
        if finished:
            self._drop_finished()
        return new

    def _tokens_of(self, job: Job) -> int:
        if self._accept == 1.0:
            return 1
        job.credit += self._accept
        count = min(int(job.credit), job.output - job.generated)
        job.credit -= int(job.credit)
        return max(1, count)

    def _prefill(self) -> Step | None:
        if not self.waiting and self.chunked is None:
            return None
        left = self.limits.chunk_tokens
        step = Step("prefill", 0.0, [], running=len(self.running))
        context = 0
        if self.chunked is not None:
            job = self.chunked
            take = min(left, job.target - job.computed)
            context += job.computed
            left -= take
            self._take(job, take)
            step.new_tokens += take
            step.new_sequences += 1
            if job.computed >= job.target:
                step.jobs.append(job)
                self.chunked = None
            else:
                step.chunked = job
        reserve = sum(min(job.output - job.generated, RESERVE_AT_MOST) for job in self.running) * self.ratio
        while self.waiting and left > 0 and self.chunked is None:
            if len(self.running) + len(step.jobs) + (step.chunked is not None) >= self.limits.max_running:
                break
            job = self.waiting[0]
            blocks = self.cache.match(job.ids)
            extend = job.target - len(blocks) * BLOCK
            need = extend + min(job.output - job.generated, RESERVE_AT_MOST)
            alone = not self.running and not step.jobs
            if need + reserve > self.free_tokens and not (alone and extend <= self.free_tokens):
                break
            self.waiting.popleft()
            self.cache.lock(blocks)
            job.blocks = blocks
            job.computed = len(blocks) * BLOCK
            if not job.retractions:
                job.cached = job.computed
                self.totals.cached += job.computed
                self.totals.prompt += job.prompt
                self.totals.requests += 1
            step.cached_tokens += job.computed
            context += job.computed
            take = min(left, extend)
            left -= take
            self._take(job, take)
            reserve += min(job.output - job.generated, RESERVE_AT_MOST)
            step.new_tokens += take
            step.new_sequences += 1
            if job.computed < job.target:
                self.chunked = step.chunked = job
            else:
                step.jobs.append(job)
        if not step.new_sequences:
            return None
        step.queued = len(self.waiting)
        step.pending = sum(job.target for job in self.waiting) + (self.chunked.target - self.chunked.computed if self.chunked else 0)
        step.seconds = self.cost.prefill_s(step.new_tokens, context) * self.noise.factor("prefill", step.new_tokens)
        step.seconds += self.noise.stall_s(step.new_tokens)
        self.totals.prefill_passes += 1
        return step

    def _take(self, job: Job, tokens: int) -> None:
        job.computed += tokens
        job.owned += tokens
        self.owned += tokens
        self._make_room(0)

    def _make_room(self, tokens: int) -> bool:
        """Evicts cached blocks until `tokens` more fit; False when they do not."""
        missing = self.owned + self.cache.locked + self.cache.evictable + tokens - self.limits.pool_tokens
        return missing <= 0 or self.cache.evict(missing) >= missing

    def _finish_prefill(self, step: Step) -> list[tuple[Job, int]]:
        new: list[tuple[Job, int]] = []
        for job in step.jobs:
            if job.aborted:
                continue
            job.blocks += self.cache.insert(job.ids, job.blocks)
            moved = len(job.blocks) * BLOCK - (job.computed - job.owned)
            job.owned -= moved
            self.owned -= moved
            job.generated += 1
            job.owned += 1
            job.computed += 1
            self.owned += 1
            self.totals.generated += 1
            self.running.append(job)
            new.append((job, 1))
        self._drop_finished()
        return new

    def _drop_finished(self) -> None:
        for job in self.running:
            if job.done:
                self._release(job)
        self.running = [job for job in self.running if not job.done]

    def _release(self, job: Job) -> None:
        self.owned -= job.owned
        job.owned = 0
        self.cache.unlock(job.blocks)
        job.blocks = []

    def _decode(self) -> Step | None:
        if not self.running:
            return None
        self._retract_if_full()
        batch = len(self.running)
        graph = batch <= self.cost.force.graph_rows
        context = sum(job.computed for job in self.running)
        seconds = self.cost.decode_s(batch, context) * self.noise.factor("decode", batch)
        if graph:
            self.totals.decode_graph += 1
        else:
            self.totals.decode_eager += 1
        return Step("decode", seconds, list(self.running), running=batch, queued=len(self.waiting), graph=graph)

    def _retract_if_full(self) -> None:
        tokens = self.cost.model.draft_tokens
        if self._make_room(len(self.running) * tokens):
            return
        old, freed, count = self.ratio, 0, 0
        while len(self.running) > 1 and not self._make_room(len(self.running) * tokens):
            job = min(self.running, key=lambda each: (each.generated, -each.prompt))
            self.running.remove(job)
            freed += job.owned
            count += 1
            self._release(job)
            job.retractions += 1
            job.target = job.prompt + job.generated
            job.computed = 0
            self.waiting.appendleft(job)
        if count:
            running = sum(job.output for job in self.running) or 1
            self.ratio = min(1.0, (sum(job.generated for job in self.running) + 20 * len(self.running)) / running)
            self.ratio = max(self.ratio, old)
            self.totals.retracted += count
            self.retractions.append(Retraction(count, freed, old, self.ratio))
