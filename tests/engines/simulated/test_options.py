"""argparse's words for what a version does not know, and names by version."""

import pytest

from runner.engines.base import argv_of
from runner.engines.simulated.options import Refused, known, parse, words_of
from runner.engines.simulated.shapes import version_of


def refused(words: list[str], version: str) -> Refused:
    with pytest.raises(Refused) as caught:
        parse(words, version_of(version))
    return caught.value


def test_unknown_options_are_named_in_the_last_line_of_a_long_usage() -> None:
    refusal = refused(["--tp-size", "8", "--no-such-flag", "3", "--other"], "0.5.9")
    last = refusal.text.splitlines()[-1]
    assert last == "launch_server.py: error: unrecognized arguments: --no-such-flag 3 --other"
    assert len(refusal.text) > 10_000
    assert refused(["--no-such-flag"], "0.5.23").sentence.startswith("sglang serve: error: unrecognized arguments")


@pytest.mark.parametrize(
    ("option", "has", "lacks"),
    [
        (["--stream-output"], "0.5.9", "0.5.10"),
        (["--flashinfer-allreduce-fusion-backend", "auto"], "0.5.14", "0.5.13"),
        (["--cuda-graph-max-bs", "64"], "0.5.19", None),
        (["--cuda-graph-bs-decode", "1", "2"], "0.5.15", "0.5.9"),
        (["--attn-dp-size", "2"], "0.5.22", "0.5.15"),
        (["--nsa-decode-backend", "x"], "0.5.9", "0.5.20"),
    ],
)
def test_names_come_and_go(option: list[str], has: str, lacks: str | None) -> None:
    parse(option, version_of(has))
    if lacks is not None:
        refused(option, lacks)


def test_a_removed_option_can_turn_ambiguous() -> None:
    assert (
        "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, "
        in refused(["--cuda-graph-max-bs", "64"], "0.5.20").sentence
    )


def test_an_unambiguous_beginning_is_taken() -> None:
    assert parse(["--enable-mscc"], version_of("0.5.9"))["enable_mscclpp"] is True


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--moe-runner-backend", "b12x"], "invalid choice: 'b12x'"),
        (["--max-running-requests", "many"], "invalid int value: 'many'"),
        (["--max-running-requests"], "expected one argument"),
        (["--enable-mscclpp", "3"], "unrecognized arguments: 3"),
    ],
)
def test_bad_values(words: list[str], sentence: str) -> None:
    assert sentence in refused(words, "0.5.15").sentence


def test_words_are_those_of_the_real_command_line() -> None:
    options = {"tp-size": 8, "enable-mscclpp": True, "off": False, "none": None, "cuda-graph-bs": [1, 2], "cuda-graph-config": {"a": 1}}
    assert words_of(options) == argv_of(options)


def test_values_have_their_types() -> None:
    args = parse(["--tp", "8", "--mem-fraction-static", "0.9", "--cuda-graph-bs", "1", "2", "8"], version_of("0.5.9"))
    assert (args["tp_size"], args["mem_fraction_static"], args["cuda_graph_bs"]) == (8, 0.9, [1, 2, 8])


def test_later_versions_know_more() -> None:
    assert len(known(version_of("0.5.23")).defaults) > len(known(version_of("0.5.9")).defaults) > 350
