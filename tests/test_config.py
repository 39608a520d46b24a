"""Configurations that cannot be read are the user's mistake: one message that names the thing, never a trace."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runner.config import _known_keys, load_factor, settings_from
from runner.errors import UserError


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"grid": 5}, "grid: must be a mapping"),
        ({"study": "abc"}, "study: must be a mapping"),
        ({"baseline": ["on"]}, "baseline: must be a mapping"),
        ({"include": 5}, "include: must be a list"),
        ({"exclude": "x"}, "exclude: must be a list"),
        ({"level": "${nope}"}, "nope"),
    ],
)
def test_a_wrong_shape_is_named(tree: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings_from(OmegaConf.create(tree))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'levels: {"1": {', "cannot be read as YAML"),
        (b"\xff\xfe\x00\x01\x80", "cannot be read as YAML"),
        (b"- a\n", "must be a mapping"),
        (b"just words\n", "must be a mapping"),
        (b"levels: {off: {}}\n", 'quote it: "off"'),
    ],
)
def test_a_broken_factor_file_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "factor").mkdir()
    (tmp_path / "factor" / "mine.yaml").write_bytes(text)
    with pytest.raises(UserError, match=message) as refused:
        load_factor("mine", [tmp_path])
    assert "mine.yaml" in str(refused.value)


def command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    root = f"tracking.root={folder / 'mlruns'}"
    argv = [sys.executable, "-m", "runner", "--config-dir", str(folder), root, "action=plan", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_another_python_is_told_where_the_runner_lives() -> None:
    """`python -m runner` with the machine's own Python: no trace, and the way to the right one."""
    code = "import builtins, sys; real = builtins.__import__\n"
    code += "def without(name, *rest, **more):\n    if name.split('.')[0] == 'hydra': raise ModuleNotFoundError(name=name)\n    return real(name, *rest, **more)\n"
    code += "builtins.__import__ = without\nfrom runner.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "has no package 'hydra'" in done.stderr and "-m runner" in done.stderr


def test_what_hydra_refuses_is_one_message_with_the_choices(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "torn.yaml").write_text('grid: {mscclpp: ["off", \n', encoding="utf-8")
    for words, parts in (
        (["protocol.min_blokcs=3"], ["protocol.min_blokcs", "min_blocks"]),
        (["+experiment=torn"], ["torn.yaml", "line"]),
        (["node=rtx6000_x8"], ["no 'rtx6000_x8' in conf group node (did you mean 'rtxpro6000_x8'?)", "choices: cpu, "]),
        (["protocl.min_blocks=3"], ["no key 'protocl' (did you mean 'protocol'?)"]),
        (["schedule.notifi=always"], ["choices:", "notify"]),
        (["+experiment=smoke", "baseline.sm120_fusion=off"], ["choices: mscclpp", "`+baseline.sm120_fusion=...` adds it"]),
    ):
        done = command(tmp_path, *words)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        assert "HYDRA_FULL_ERROR" not in done.stderr
        assert all(part in done.stderr for part in parts), done.stderr
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.parametrize(
    ("loc", "known"),
    [
        ((), "protocol"),
        (("protocol",), "max_blocks"),
        (("workload", "phases", "decode_c1"), "concurrency"),
        (("factors", "mscclpp", "levels", "on"), "options"),
        (("factor",), "levels"),
        (("engine", "deadlines"), "drain_s"),
    ],
)
def test_the_neighbours_of_an_unknown_key_are_named_at_every_depth(loc: tuple[str, ...], known: str) -> None:
    assert known in _known_keys(loc)


def test_a_place_without_fixed_keys_has_no_neighbours() -> None:
    assert _known_keys(("pins", "nope")) == []
