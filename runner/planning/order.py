"""Launch order: blocks of every arm once, balanced for position and predecessor by a recorded seed.

Rows are those of Williams squares (E. J. Williams, 1949): for an even number of arms one square, in which every arm stands once at
every position and follows every other arm exactly once; for an odd number a square and its mirror image, in which each follows each
twice. Arms are dealt to the square's symbols, and its rows to the blocks, at random.
"""

import random
from collections.abc import Iterator, Sequence


def williams_row(count: int, index: int) -> tuple[int, ...]:
    """Row `index` of symbols 0..count-1; rows from `count` on (odd counts only) are the mirror images."""
    if count <= 1:
        return (0,) * count
    shift, mirrored = index % count, index >= count
    row = [((step + 1) // 2 if step % 2 else -(step // 2)) for step in range(count)]
    shifted = tuple((symbol + shift) % count for symbol in row)
    return tuple(reversed(shifted)) if mirrored else shifted


def square_size(count: int) -> int:
    """Rows of a whole balanced set: one square for an even count, a square and its mirror image for an odd one."""
    return max(1, count if count % 2 == 0 or count == 1 else 2 * count)


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
    count = len(arms)
    while True:
        dealt = list(arms)
        source.shuffle(dealt)
        size = square_size(count)
        for half in (range(min(size, max(1, count))), range(max(1, count), size)):
            numbers = list(half)
            source.shuffle(numbers)
            for number in numbers:
                yield tuple(dealt[symbol] for symbol in williams_row(count, number))
