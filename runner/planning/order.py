"""Launch order: blocks of every arm once, balanced for position and predecessor by a recorded seed.

Rows are those of Williams squares (E. J. Williams, 1949): for an even number of arms one square, in which every arm stands once at
every position and follows every other arm exactly once; for an odd number a square and its mirror image, in which each follows each
twice. Arms are dealt to the square's symbols, and its rows to the blocks, at random.
"""

import random
from collections.abc import Iterator, Sequence


def williams_rows(count: int) -> tuple[tuple[int, ...], ...]:
    """`count` rows of symbols 0..count-1 for an even count, twice as many (then the mirror images) for an odd one."""
    if count <= 1:
        return ((0,) * count,)
    first = [0]
    for step in range(1, count):
        first.append((step + 1) // 2 if step % 2 else count - step // 2)
    square = [tuple((symbol + shift) % count for symbol in first) for shift in range(count)]
    mirror = [tuple(reversed(row)) for row in square] if count % 2 else []
    return (*square, *mirror)


def blocks(
    arms: Sequence[str], count: int, seed: int, *, doubled: str | None = None, doubled_blocks: int = 0
) -> tuple[tuple[str, ...], ...]:
    """`count` rows, each with every arm once. `doubled` (an A/A arm) is in the first `doubled_blocks` rows only: it takes part in
    their balance. Raises ValueError for a repeated name."""
    if len(set(arms)) != len(arms):
        raise ValueError("an arm is named twice")
    source = random.Random(seed)
    with_double = [*arms, doubled] if doubled is not None else list(arms)
    front = min(doubled_blocks, count) if doubled is not None else 0
    rows = _take(with_double, front, source)
    return (*rows, *_take(list(arms), count - front, source))


def _take(arms: Sequence[str], count: int, source: random.Random) -> list[tuple[str, ...]]:
    rows = _endless(arms, source)
    return [next(rows) for _ in range(count)]


def _endless(arms: Sequence[str], source: random.Random) -> Iterator[tuple[str, ...]]:
    """Square after square, each dealt afresh. The Latin halves of an odd square are not mixed, so positions stay balanced early."""
    while True:
        dealt = list(arms)
        source.shuffle(dealt)
        square = williams_rows(len(arms))
        half = max(1, len(arms))
        for part in (list(square[:half]), list(square[half:])):
            source.shuffle(part)
            for row in part:
                yield tuple(dealt[symbol] for symbol in row)
