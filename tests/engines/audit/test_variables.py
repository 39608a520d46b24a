"""Does the source read a variable? Definitions, settings and mentions are no reading."""

import sys
from pathlib import Path

import pytest

from runner.engines.resolve import env_reads, reads_of
from tests.engines.source_trees import small_package

NAME = "SGLANG_KNOB"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f'import os\nx = os.environ.get("{NAME}", "1")\n', True),
        (f'import os\nx = os.getenv("{NAME}")\n', True),
        (f'import os\nx = os.environ["{NAME}"]\n', True),
        (f'x = get_bool_env_var("{NAME}")\n', True),
        (f"x = envs.{NAME}.get()\n", True),
        (f'for name in ("{NAME}", "B"):\n    use(name)\n', True),
        (f"class Envs:\n    {NAME} = EnvBool(False)\n", False),
        (f'import os\nos.environ["{NAME}"] = "1"\n', False),
        (f'import os\nos.environ.setdefault("{NAME}", "1")\n', False),
        (f'run(env={{"{NAME}": "1"}})\n', False),
        (f"envs.{NAME}.set(True)\n", False),
        (f'"""{NAME}"""\n', False),
        (f"# {NAME} is gone\n", False),
        (f'logger.warning("{NAME}")\n', False),
        (f'x = os.getenv("{NAME}_TOO")\n', False),
        ("x = 1\n", False),
    ],
)
def test_reading(text: str, read: bool, tmp_path: Path) -> None:
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/a.py": text})
    assert env_reads(tmp_path, [NAME]) == {NAME: read}


def test_the_place_is_told(tmp_path: Path) -> None:
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/srt/a.py": f'\n\nx = os.getenv("{NAME}")\n'})
    assert reads_of(tmp_path, [NAME]) == {NAME: ("sglang/srt/a.py:3",)}


def test_tests_and_other_runtimes_do_not_count(tmp_path: Path) -> None:
    reading = f'x = os.getenv("{NAME}")\n'
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/test/a.py": reading, "sglang/multimodal_gen/b.py": reading})
    assert env_reads(tmp_path, [NAME]) == {NAME: False}


def test_c_sources_count_where_they_ask(tmp_path: Path) -> None:
    small_package(tmp_path, {"sglang/__init__.py": "", "sglang/jit/a.cuh": f'auto x = getenv("{NAME}");\n'})
    assert env_reads(tmp_path, [NAME]) == {NAME: True}


def test_what_a_library_reads_stays_unknown(tmp_path: Path) -> None:
    small_package(tmp_path, {"sglang/__init__.py": ""})
    assert env_reads(tmp_path, ["NCCL_ALGO", "FLASHINFER_X", "MSCCLPP_X", NAME]) == {
        "NCCL_ALGO": None,
        "FLASHINFER_X": None,
        "MSCCLPP_X": None,
        NAME: False,
    }


def test_without_a_source_nothing_is_claimed(tmp_path: Path) -> None:
    assert env_reads(tmp_path, [NAME]) == {NAME: None}
    assert env_reads(tmp_path, []) == {}


def test_what_goes_first_on_the_path_is_what_is_read(tmp_path: Path) -> None:
    small_package(tmp_path / "packed", {"sglang/__init__.py": "", "sglang/srt/a.py": f'x = os.getenv("{NAME}")\n'})
    assert env_reads(sys.executable, [NAME]) == {NAME: None}, "this interpreter has no engine of its own"
    assert env_reads(sys.executable, [NAME], python_path=[str(tmp_path / "packed")]) == {NAME: True}
