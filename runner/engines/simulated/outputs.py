"""What the simulated model says: greedy, the same for the same prompt in every launch; log-probabilities jitter by launch.

A fault can shift everything (`wrong_output`) or turn log-probabilities into NaN, which SGLang's JSON writes as null."""

import itertools
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from runner.engines.simulated.shapes import Model

MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """splitmix64: 64 well-mixed bits from any integer."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Distortion:
    """`shift`: added to log-probabilities, other tokens too when it is not 0; `nan`: no number at all."""

    shift: float = 0.0
    nan: bool = False


class Outputs:
    """Tokens and log-probabilities of one launch. `dummy`: random weights, whose log-probabilities say nothing."""

    def __init__(self, model: Model, launch_seed: str, jitter: float = 0.002, flip_share: float = 0.0, dummy: bool = False) -> None:
        self._vocab = model.vocab
        self._special = frozenset(model.special)
        self._dummy = dummy
        self._jitter = jitter
        self._flip_share = flip_share
        self._random = random.Random(launch_seed)
        self._launch = zlib.crc32(launch_seed.encode())
        self.distortion = Distortion()

    def tokenize(self, text: str) -> list[int]:
        """About four characters a token, the same ids for the same text."""
        return [self._legal(mix(zlib.crc32(text[start : start + 4].encode()))) for start in range(0, max(1, len(text)), 4)]

    def state(self, ids: Sequence[int]) -> int:
        """What a continuation of this prompt depends on."""
        base = mix(hash(tuple(ids)) & MASK)
        return base ^ 0xABCDEF if self.distortion.shift else base

    def token(self, state: int, position: int) -> int:
        """The greedy token at `position` (from 0) of the output."""
        value = mix(state + position)
        if self._flip_share and (mix(value ^ self._launch) % 1_000_000) < self._flip_share * 1e6:
            value = mix(value + 1)
        return self._legal(value)

    def prompt_logprobs(self, ids: Sequence[int]) -> list[list[float | int | None]]:
        """[[log-probability, id, null], ...]; the first one has none, as nothing comes before it."""
        rows: list[list[float | int | None]] = [[None, ids[0], None]]
        for before, this in itertools.pairwise(ids):
            rows.append([self.logprob(before * 1_000_003 + this), this, None])
        return rows

    def logprob(self, key: int) -> float | None:
        """One log-probability; None for NaN."""
        if self.distortion.nan:
            return None
        if self._dummy:
            return -math.log(self._vocab)
        share = mix(key) / 2**64
        return round(-(0.02 + 7.0 * share * share) + self.distortion.shift + self._random.gauss(0, self._jitter), 6)

    def stop_after(self, state: int) -> int:
        """Output length of a request that does not ignore the end of the text."""
        return 16 + mix(state ^ 0x5EED) % 400

    def _legal(self, value: int) -> int:
        token = value % self._vocab
        while token in self._special:
            token = (token + 1) % self._vocab
        return token
