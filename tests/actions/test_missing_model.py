"""A model folder that a person names is there, or the command is refused."""

from pathlib import Path

import pytest

from runner.actions.ground import with_model
from runner.errors import UserError
from runner.records.paths import RootPaths
from runner.records.schema import EngineIdentity
from tests.actions.example import MODEL, settings_of


def test_a_model_folder_that_is_not_there_is_refused_also_where_nothing_is_read_of_it(tmp_path: Path) -> None:
    simulated = EngineIdentity(kind="simulated", version="0.5.9", build="b", simulated=True)
    missing = settings_of(tmp_path, model={**MODEL, "path": str(tmp_path / "nope")})
    with pytest.raises(UserError, match="there is no such folder"):
        with_model(missing, RootPaths(tmp_path), simulated)
    there = settings_of(tmp_path, model={**MODEL, "path": str(tmp_path)})
    assert with_model(there, RootPaths(tmp_path), simulated) is there
