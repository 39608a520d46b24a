"""Where packages lie and which versions they are."""

import sys
from pathlib import Path

import pytest

from runner.engines.audit import installed_packages, packages_in
from runner.engines.audit.packages import version_in
from runner.errors import UserError
from tests.engines.source_trees import small_package


def test_the_interpreter_finds_packages_without_importing_them(tmp_path: Path) -> None:
    small_package(tmp_path, {"sglang/__init__.py": "raise RuntimeError", "sglang/version.py": '__version__ = "0.5.9"\n'})
    found = installed_packages(sys.executable, python_path=[str(tmp_path)])
    assert found["sglang"].version == "0.5.9"
    assert found["sglang"].folder == tmp_path / "sglang"
    assert "mscclpp" not in found


@pytest.mark.parametrize("place", ["", "python/"])
def test_a_folder_of_sources_works_as_a_checkout_too(place: str, tmp_path: Path) -> None:
    small_package(tmp_path, {f"{place}sglang/__init__.py": ""})
    assert packages_in(tmp_path)["sglang"].folder == tmp_path / place / "sglang"


def test_the_package_itself_may_be_given(tmp_path: Path) -> None:
    small_package(tmp_path, {"sglang/__init__.py": ""})
    assert packages_in(tmp_path / "sglang")["sglang"].folder == tmp_path / "sglang"


def test_the_distribution_outranks_a_version_file(tmp_path: Path) -> None:
    small_package(
        tmp_path,
        {"flashinfer/__init__.py": "", "flashinfer/version.py": '__version__ = "0"\n', "flashinfer_python-0.6.12.dist-info/METADATA": ""},
    )
    assert version_in(tmp_path / "flashinfer") == "0.6.12"


@pytest.mark.parametrize("python", ["/does/not/exist", "/bin/false"])
def test_an_interpreter_that_does_not_answer_is_named(python: str) -> None:
    with pytest.raises(UserError, match=f"engine.python={python}"):
        installed_packages(python)
