"""What an action that plans stands on, and in which order it is looked at."""

from pathlib import Path

import pytest

from runner.actions.ground import Ground, make_plan
from runner.errors import UserError
from runner.records.paths import RootPaths
from runner.records.schema import EngineIdentity
from tests.actions.example import settings_of


def test_a_missing_model_is_said_before_the_engine_is_asked(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    settings = settings.model_copy(update={"model": settings.model.model_copy(update={"path": str(tmp_path / "nothing")})})
    nobody = EngineIdentity(kind="sglang", version="0.5.15", build="b", python=str(tmp_path / "no-interpreter"))
    with pytest.raises(UserError, match="there is no such folder"):
        make_plan(Ground(settings, RootPaths(tmp_path), "sglang", "0.5.15", None, nobody))
