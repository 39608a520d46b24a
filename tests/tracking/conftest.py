"""One migrated SQLite store for all tests of a session (making it takes seconds); every test works on its own copy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.records.paths import RootPaths
from runner.tracking.store import create_database


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = RootPaths(tmp_path_factory.mktemp("template"))
    create_database(root)
    return root.database


@pytest.fixture
def make_root(template: Path, tmp_path: Path) -> Callable[[str], RootPaths]:
    def make(name: str = "mlruns") -> RootPaths:
        root = RootPaths(tmp_path / name)
        root.root.mkdir()
        shutil.copy(template, root.database)
        return root

    return make


@pytest.fixture
def root(make_root: Callable[[str], RootPaths]) -> RootPaths:
    return make_root("mlruns")
