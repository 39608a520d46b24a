"""Prompts as token ids: exact in length, never a special id, never twice in a launch, the same for every arm of a block."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import shake_128

from runner.loadgen.job import Job, LengthRecipe


@dataclass(frozen=True)
class Prompt:
    """What one request sends: `ids` or, for text workloads, `text` or chat `messages`. `output` is the tokens asked for."""

    output: int
    ids: tuple[int, ...] = ()
    text: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    group: int = 0

    @property
    def input(self) -> int:
        """Tokens in the prompt, 0 where only the server can tell."""
        return len(self.ids)


def draw_length(recipe: LengthRecipe, draw: random.Random, at_most: int) -> int:
    """Tokens, at least 1 and at most `at_most`. Lognormal: `value` is the mean of the unclipped distribution."""
    if recipe.kind == "uniform":
        length = draw.randint(min(recipe.low, recipe.high), max(recipe.low, recipe.high))
    elif recipe.kind == "lognormal":
        import math

        mu = math.log(recipe.value) - recipe.sigma**2 / 2
        length = min(max(round(draw.lognormvariate(mu, recipe.sigma)), recipe.low), recipe.high)
    else:
        length = recipe.value
    return max(1, min(length, at_most))


def draw_ids(ids: Sequence[int], key: str, count: int) -> list[int]:
    """`count` of `ids`, from SHAKE-128 of `key`: ten times as fast as seeding and asking a random.Random, and a client's time is
    dear (the remainder's bias is under len(ids) / 2**32)."""
    size = len(ids)
    return [ids[word % size] for word in memoryview(shake_128(key.encode()).digest(4 * count)).cast("I")]


def usable_ids(vocab_size: int, special: Sequence[int]) -> list[int]:
    """Every id that is not special. Raises ValueError when none is left."""
    refused = set(special)
    ids = [number for number in range(vocab_size) if number not in refused]
    if not ids:
        raise ValueError("every id of the vocabulary is special")
    return ids


@dataclass
class PromptStream:
    """Prompt number i of a stream, by calling it. `key` names the stream: other keys give other prompts.

    The first ids of a prompt (after a shared prefix) spell its number in the base of the vocabulary under a seeded shift,
    so that no two prompts of one stream are alike even in their first token, up to the vocabulary's size."""

    key: str
    vocab_size: int
    special: tuple[int, ...]
    input: LengthRecipe
    output: LengthRecipe
    max_context: int = 32768
    shared_prefix: int = 0
    prefix_groups: int = 1
    _ids: list[int] = field(default_factory=list, repr=False)
    _shift: int = 0

    def __post_init__(self) -> None:
        self._ids = usable_ids(self.vocab_size, self.special)
        self._shift = random.Random(f"{self.key}/shift").randrange(len(self._ids))
        self._prefixes: dict[int, list[int]] = {}

    def __call__(self, index: int) -> Prompt:
        length, output = self.lengths(index)
        group = index % self.prefix_groups
        prefix = self.prefix(group)[: max(0, length - 1)] if self.shared_prefix else []
        return Prompt(output=output, ids=tuple(prefix + self.body(index, length - len(prefix))), group=group)

    def lengths(self, index: int) -> tuple[int, int]:
        """Prompt and output tokens of request `index`; together they fit into the context."""
        if self.input.kind == self.output.kind == "fixed":
            length = max(1, min(self.input.value, self.max_context - 1))
            return length, max(1, min(self.output.value, self.max_context - length))
        draw = random.Random(f"{self.key}/{index}")
        length = draw_length(self.input, draw, self.max_context - 1)
        return length, draw_length(self.output, draw, max(1, self.max_context - length))

    def body(self, index: int, length: int) -> list[int]:
        """`length` ids whose head spells `index`."""
        base = len(self._ids)
        head: list[int] = []
        rest = index
        while len(head) < length and (rest or not head):
            head.append(self._ids[(rest + self._shift) % base])
            rest //= base
        return head + draw_ids(self._ids, f"{self.key}/{index}/ids", length - len(head))

    def prefix(self, group: int) -> list[int]:
        """The ids that every prompt of `group` begins with."""
        if group not in self._prefixes:
            self._prefixes[group] = draw_ids(self._ids, f"{self.key}/prefix/{group}", self.shared_prefix)
        return self._prefixes[group]


def prompts_of(job: Job) -> Callable[[int], Prompt]:
    """The prompt of request number i of the phase. Raises OSError or ValueError for a dataset that cannot be read."""
    if job.dataset == "random_ids":
        return PromptStream(
            key=f"{job.seed}/{job.stream}",
            vocab_size=job.vocab_size,
            special=job.special,
            input=job.input,
            output=job.output,
            max_context=job.max_context,
            shared_prefix=job.shared_prefix,
            prefix_groups=job.prefix_groups,
        )
    from runner.loadgen.datasets import prompts_from

    return prompts_from(job)
