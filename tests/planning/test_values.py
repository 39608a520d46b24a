"""Level texts by rule: sizes with a unit and a power of two, numbers, lists."""

import pytest

from runner.errors import UserError
from runner.planning.bytes import power_of_two_bytes, text_of
from runner.planning.values import value_of


@pytest.mark.parametrize(
    ("text", "size"), [("1KB", 1024), ("256KB", 262144), ("1MB", 1048576), ("2 MB", 2097152), ("1048576B", 1048576), ("1GB", 2**30)]
)
def test_sizes(text: str, size: int) -> None:
    assert power_of_two_bytes(text, "grid.x") == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1M", "unit is mandatory.*did you mean 1MB"),
        ("1048576", "unit is mandatory.*there is none.*did you mean 1MB"),
        ("1mb", "unit is mandatory.*did you mean 1MB"),
        ("1MiB", "unit is mandatory.*did you mean 1MB"),
        ("3MB", "only powers of two.*2MB and 4MB"),
        ("1500KB", "only powers of two"),
        ("0MB", "only powers of two"),
        ("512B", "only powers of two from 1KB on"),
        ("1.5MB", "is not a size"),
        ("big", "is not a size"),
        ("-1MB", "is not a size"),
    ],
)
def test_sizes_that_the_engine_would_choke_on(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"grid.mscclpp_max_bytes: {text!r}.*{said}"):
        power_of_two_bytes(text, "grid.mscclpp_max_bytes")


def test_sizes_as_text_round_trip() -> None:
    for power in range(10, 34):
        assert power_of_two_bytes(text_of(2**power), "x") == 2**power


def test_other_rules() -> None:
    assert value_of("positive_integer", "64", "x") == 64
    assert value_of("integer", "-1", "x") == -1
    assert value_of("number", "0.85", "x") == 0.85
    assert value_of("integer_list", "1,2, 8", "x") == [1, 2, 8]
    for rule, text in [("positive_integer", "0"), ("integer", "1.5"), ("number", "much"), ("integer_list", "2,1"), ("any_text", " ")]:
        with pytest.raises(UserError, match=r"^x: "):
            value_of(rule, text, "x")
    with pytest.raises(UserError, match=r"no value_rule 'bytes'; choices: .*power_of_two_bytes"):
        value_of("bytes", "1", "x")
