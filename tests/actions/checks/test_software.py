"""What a person names (an interpreter, a model's folder) is checked wherever the doctor runs."""

import sys
from pathlib import Path

from runner.actions.checks.software import check_engine, check_model
from runner.records.schema import EngineIdentity
from runner.spec.engine import EngineSpec


def test_what_is_named_must_be_there_also_where_nothing_of_it_is_used(tmp_path: Path) -> None:
    def nothing() -> EngineIdentity:
        raise AssertionError("the simulated engine has nothing to identify")

    named = EngineSpec(kind="simulated", python=str(tmp_path / "nope"))
    assert [(each.state, "there is no such file" in each.text) for each in check_engine(named, "simulated", nothing, ">=0.5.9")] == [
        ("fail", True)
    ]
    used = EngineSpec(kind="simulated", python=sys.executable)
    assert [each.state for each in check_engine(used, "simulated", nothing, ">=0.5.9")] == ["warn", "warn"]
    assert [each.state for each in (*check_model(None), *check_model(str(tmp_path)), *check_model(str(tmp_path / "nope")))] == [
        "ok",
        "fail",
    ]
    assert "no snapshot of that name" in check_model("org-of-nobody/model-of-nobody")[0].text, "org/name is a snapshot, not a folder"


def test_the_interpreter_of_an_image_is_not_looked_for_on_this_machine() -> None:
    inside = EngineSpec(kind="container", python="/opt/inside/the/image/python")
    found = check_engine(inside, "container", lambda: EngineIdentity(kind="container", version="0.5.15", build="b"), ">=0.5.9")
    assert [each.state for each in found] == ["ok"]
