"""A person adds a factor with one YAML file in a folder of their own, and no Python."""

from pathlib import Path

import pytest

from runner.errors import UserError
from runner.planning.build import build_plan
from runner.records.plan import Plan

from .conftest import Compose

OWN = """
description: how often the server streams
levels:
  "1": {}
  "8": {options: {stream-interval: 8}}
  late: {env: {MY_LIBRARY_DELAY: "5"}, requires: [{engine: ">=0.5.12"}]}
requires: [{node: "gpus >= 1"}]
evidence:
  - {levels: ["8"], resolved: {server_info: "stream_interval == 8"}}
"""


def planned(compose: Compose, folder: Path, text: str, version: str = "0.5.9", *overrides: str) -> Plan:
    (folder / "factor").mkdir(exist_ok=True)
    (folder / "factor" / "stream_interval.yaml").write_text(text)
    grid = ("+experiment=smoke", "~grid.mscclpp", "~grid.mscclpp_max_bytes", "~baseline.mscclpp", "+grid.stream_interval=['1','8',late]")
    settings = compose(*grid, *overrides, folders=[folder])
    return build_plan(settings, engine_kind="simulated", engine_version=version)


def test_one_file_is_enough(compose: Compose, tmp_path: Path) -> None:
    plan = planned(compose, tmp_path, OWN, "0.5.15.post1")
    assert plan.arm("stream_interval=8").options["stream-interval"] == 8
    assert plan.arm("stream_interval=late").env["MY_LIBRARY_DELAY"] == "5"
    assert planned(compose, tmp_path, OWN, "0.5.9").cells[2].reason == "stream_interval=late: needs engine >=0.5.12 (this one: 0.5.9)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("gpus >= 1", "gpus => 1"), r"factor/stream_interval.yaml, requires: node: the condition 'gpus => 1' is not understood"),
        (("gpus >= 1", "gpu >= 1"), r"there is no 'gpu' .did you mean 'gpus'.*; choices: .*gpus"),
        ((">=0.5.12", "0.5.12"), "is not a set of versions"),
        (('"1": {}', "1: {}"), 'quote it: "1"'),
        (("options: {stream-interval: 8}", "patches: [nope]"), r"there is no patch set 'nope'; choices: .*sm120_fusion"),
        (
            ("options: {stream-interval: 8}", "option: {stream-interval: 8}"),
            "option: unknown key .did you mean 'options'.*; choices: .*options",
        ),
        (("{node:", "{engine: '>=0.5', node:"), "exactly one of node, engine"),
    ],
)
def test_mistakes_in_it_are_named(compose: Compose, tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in OWN
    with pytest.raises(UserError, match=said):
        planned(compose, tmp_path, OWN.replace(*change))


def test_two_factors_that_set_one_thing_clash(compose: Compose, tmp_path: Path) -> None:
    (tmp_path / "factor").mkdir()
    (tmp_path / "factor" / "other.yaml").write_text('levels: {"no": {}, "yes": {options: {stream-interval: 2}}}')
    plan = planned(compose, tmp_path, OWN, "0.5.15.post1", "+grid.other=['no','yes']")
    clash = next(one for one in plan.cells if one.levels == {"stream_interval": "8", "other": "yes"})
    assert (clash.status, clash.refused_at) == ("REJECTED", "rule")
    assert "stream_interval=8 sets the option stream-interval to something else" in clash.reason
