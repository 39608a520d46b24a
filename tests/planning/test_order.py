"""Launch order: balanced for position and predecessor, the same for the same seed."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.planning.order import blocks, square_size


@given(count=st.integers(2, 17), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_whole_square_is_balanced(count: int, seed: int) -> None:
    arms = [f"a{index}" for index in range(count)]
    rows = blocks(arms, square_size(count), seed)
    assert all(sorted(row) == sorted(arms) for row in rows)
    repeats = len(rows) // count
    positions = Counter((position, arm) for row in rows for position, arm in enumerate(row))
    followers = Counter(pair for row in rows for pair in pairwise(row))
    assert set(positions.values()) == {repeats}
    assert len(positions) == count * count
    assert set(followers.values()) == {repeats}
    assert len(followers) == count * (count - 1)


@given(count=st.integers(2, 16), wanted=st.integers(1, 40), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_arm_meets_a_position_twice_before_all_have_met_it_once(count: int, wanted: int, seed: int) -> None:
    arms = [f"a{index}" for index in range(count)]
    rows = blocks(arms, wanted, seed)
    assert len(rows) == wanted
    positions = Counter((position, arm) for row in rows for position, arm in enumerate(row))
    assert max(positions.values()) - min(positions[p, a] for p in range(count) for a in arms) <= 1


def test_the_seed_decides() -> None:
    arms = list("abcdefg")
    assert blocks(arms, 8, 1) == blocks(arms, 8, 1)
    assert blocks(arms, 8, 1) != blocks(arms, 8, 2)


def test_a_doubled_arm_is_in_the_first_blocks_only() -> None:
    rows = blocks(["base", "x", "y"], 6, 5, doubled="A/A", doubled_blocks=3)
    assert ["A/A" in row for row in rows] == [True] * 3 + [False] * 3
    assert len({row.index("A/A") for row in rows[:3]}) == 3


def test_one_arm_and_repeated_names() -> None:
    assert blocks(["base"], 3, 0) == (("base",),) * 3
    with pytest.raises(ValueError, match="named twice"):
        blocks(["a", "a"], 3, 0)
