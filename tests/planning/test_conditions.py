"""The closed grammar: what it reads, what it means, what it refuses."""

import pytest

from runner.errors import UserError
from runner.planning.conditions import holds, parse, version_in, version_of

NODE = {"gpus": 8, "link": "pcie", "capability": 120, "name": "box"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpus >= 2", True),
        ("gpus >= 9", False),
        ("gpus > 8", False),
        ("gpus <= 8", True),
        ("gpus < 8", False),
        ("link == pcie", True),
        ("link != nvlink", True),
        ('link == "pcie"', True),
        ("capability in [90, 100]", False),
        ("capability in [90,120]", True),
        ("capability not in [90, 100]", True),
        ("gpus >= 2 and link == pcie", True),
        ("gpus >= 2 and link == nvlink", False),
        ("gpus > 2 and link == pcie and capability == 120", True),
    ],
)
def test_conditions_on_a_node(text: str, expected: bool) -> None:
    assert holds(parse(text, "test"), NODE, "test") is expected


def test_true_false_and_null_mean_themselves() -> None:
    values = {"enable-mscclpp": True, "backend": None, "text": "true"}
    assert holds(parse("enable-mscclpp == true", "t"), values, "t")
    assert not holds(parse("enable-mscclpp == false", "t"), values, "t")
    assert holds(parse("backend == null", "t"), values, "t")
    assert not holds(parse("text == true", "t"), values, "t")


def test_the_order_of_nothing_is_false() -> None:
    assert not holds(parse("gpus >= 2", "t"), {"gpus": None}, "t")


def test_numbers_compare_as_numbers_and_text_as_text() -> None:
    assert holds(parse("max == 10", "t"), {"max": "10"}, "t")
    assert holds(parse("size == 1MB", "t"), {"size": "1MB"}, "t")
    assert holds(parse("max >= 9", "t"), {"max": "10"}, "t")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpus",
        "gpus >=",
        "gpus => 2",
        "gpus >= 2 or link == pcie",
        "gpus >= 2 and",
        "capability in 90",
        "capability in [90",
        "capability in []",
        "not gpus",
        "__import__('os').system('true')",
        "gpus >= 2; link == pcie and (1)",
    ],
)
def test_anything_else_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(UserError, match=r"factor/x.yaml.*the grammar is"):
        parse(text, "factor/x.yaml, requires: node")


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"there is no 'gpu' \(did you mean 'gpus'\?\); choices: capability, gpus, link, name"):
        holds(parse("gpu >= 2", "factor/x.yaml"), NODE, "factor/x.yaml")


def test_the_order_of_text_is_refused() -> None:
    with pytest.raises(UserError, match="not both numbers"):
        holds(parse("link >= 2", "factor/x.yaml"), NODE, "factor/x.yaml")


@pytest.mark.parametrize(
    ("version", "specifiers", "expected"),
    [
        ("0.5.13.post1", "<0.5.14", True),
        ("0.5.13.post1", ">=0.5.9,<0.5.14", True),
        ("0.5.15.post1", ">=0.5.15,<0.5.22", True),
        ("0.5.15.post1", "==0.5.15.*", True),
        ("0.5.8.post1", ">=0.5.9", False),
        ("0.5.24.dev1", ">=0.5.23", True),
        ("0.5.9", "<0.5.10", True),
    ],
)
def test_versions_with_post_releases(version: str, specifiers: str, expected: bool) -> None:
    assert version_in(version_of(version), specifiers, "test") is expected


def test_bad_versions_name_their_place() -> None:
    with pytest.raises(UserError, match=r"engine.version: 'newest' is not a version"):
        version_of("newest")
    with pytest.raises(UserError, match=r"factor/x.yaml, known: '0.5' is not a set of versions"):
        version_in(version_of("0.5.9"), "0.5", "factor/x.yaml, known")
