"""The README's examples as they stand, and what it names: files, make targets, actions, experiments."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.actions.dispatch import ACTIONS
from runner.config import config_folder
from tests.docs.conftest import Planned
from tests.docs.examples import ROOT, examples, write

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "experiments/README.md", "experiments/overlap_grid/README.md")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def test_a_factor_a_question_and_a_node_of_ones_own(planned: Planned, tmp_path: Path) -> None:
    folder = write("README.md", tmp_path / "own", *examples("README.md"))
    plan = planned(folder, "node=my_node", "+experiment=my_question")
    assert plan["node"] == "my_node"
    arms = {arm["name"]: arm["options"] for arm in plan["arms"]}
    assert set(arms) == {"baseline", "stream_interval=8"}
    assert {options["tp-size"] for options in arms.values()} == {4}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file(document: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text_of(document))
    assert links
    missing = [link for link in links if not ((ROOT / document).parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_and_experiment_it_names_is_there(document: str) -> None:
    text = text_of(document)
    named = re.findall(r"`((?:runner|conf|tests)/[\w./]+)`", text) + re.findall(r"`analysis/\w+\.py`", text)
    paths = [name.strip("`") if not name.startswith("`analysis") else f"runner/{name.strip('`')}" for name in named]
    own = ("conf/engine/my_engine.yaml",)
    assert not [path for path in paths if path not in own and not (ROOT / path).exists()]
    own_examples = {Path(name).stem for name in examples(document) if name.startswith("experiment/")}
    experiments = {path.stem for path in (config_folder() / "experiment").glob("*.yaml")} | own_examples | {"NAME"}
    assert set(re.findall(r"\+experiment=(\w+)", text)) <= experiments


def test_every_action_is_listed_and_none_that_is_not_there() -> None:
    table = text_of("README.md").split("## Actions")[1].split("\n## ")[0]
    listed = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)[ `]", row.split("|")[1])}
    assert listed == set(ACTIONS)


def test_make_targets_are_those_of_the_makefile() -> None:
    table = text_of("README.md").split("## Make targets")[1]
    listed = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    defined = set(re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.MULTILINE))
    assert listed == defined


def test_shell_completion_answers() -> None:
    line = "engine-flag-runner engine="
    done = subprocess.run(
        [sys.executable, "-m", "runner", "-sc", "query=bash"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"COMP_LINE": line, "COMP_POINT": str(len(line)), "PATH": "/usr/bin:/bin"},
    )
    assert {"engine=sglang", "engine=simulated"} <= set(done.stdout.split()), done.stderr


def test_quoted_figures_are_lines_of_the_published_table() -> None:
    published = text_of("tests/bench/output/decide.md")
    quoted = [line[2:] for line in text_of("experiments/README.md").splitlines() if line.startswith("> ")]
    assert quoted
    assert not [line for line in quoted if line not in published], "quote tests/bench/output/decide.md as it is now"
