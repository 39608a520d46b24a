"""A study goes on where it stopped, and never mixes."""

import multiprocessing
from pathlib import Path

import pytest

from runner.errors import NodeBusy, UserError
from runner.execution.study import differences, named_study, open_study
from runner.records.paths import RootPaths
from tests.execution.example import small_plan
from tests.records.example import launch_record


def _open(root: Path, **changes: object):  # type: ignore[no-untyped-def]
    name = changes.pop("name", None)
    new = bool(changes.pop("new", False))
    return open_study(RootPaths(root), small_plan(**changes), name=name, new=new, config={})  # type: ignore[arg-type]


def test_the_same_plan_is_continued_with_its_launches(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.journal.append("launch_finished", launch=launch_record().model_dump(mode="json", by_alias=True))
    first.close()
    again = _open(tmp_path)
    assert again.resumed and again.paths == first.paths
    assert [record.launch for record in again.records] == ["b00-p00-baseline"]
    again.close()


def test_a_torn_line_is_reported_on_resume(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.close()
    with open(first.paths.journal, "ab") as file:
        file.write(b'{"schema":1,"seq":1,"kind":"launch_fin')
    again = _open(tmp_path)
    assert again.torn == '{"schema":1,"seq":1,"kind":"launch_fin'
    again.close()


def test_a_changed_engine_is_a_new_study_and_the_message_names_it(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.close()
    other = _open(tmp_path, identity={"engine": "0.5.10", "grid": "abc"})
    assert not other.resumed and other.paths != first.paths
    assert "engine changed (0.5.9 -> 0.5.10)" in other.replaced
    other.close()


def test_a_named_study_refuses_another_plan(tmp_path: Path) -> None:
    _open(tmp_path, name="mine").close()
    with pytest.raises(UserError, match=r"grid changed \(abc -> xyz\)"):
        _open(tmp_path, name="mine", identity={"engine": "0.5.9", "grid": "xyz"})


def test_a_finished_study_is_not_continued(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.journal.append("study_finished")
    first.close()
    second = _open(tmp_path)
    assert not second.resumed and second.paths != first.paths
    second.close()


def test_new_starts_afresh(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.close()
    second = _open(tmp_path, new=True)
    assert not second.resumed and second.paths != first.paths
    second.close()


def _hold(root: Path, held: "multiprocessing.synchronize.Event", free: "multiprocessing.synchronize.Event") -> None:
    study = _open(root, name="mine")
    held.set()
    free.wait(20)
    study.close()


def test_the_second_driver_of_a_study_is_refused(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, free = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, free))
    other.start()
    try:
        assert held.wait(20)
        with pytest.raises(NodeBusy, match="another driver works on study mine"):
            _open(tmp_path, name="mine")
    finally:
        free.set()
        other.join(20)
    _open(tmp_path, name="mine").close()


def test_an_unknown_study_names_the_choices(tmp_path: Path) -> None:
    _open(tmp_path, name="mine").close()
    with pytest.raises(UserError, match="choices: mine"):
        named_study(RootPaths(tmp_path), "yours")


def test_differences_name_what_came_and_went() -> None:
    assert differences({"a": "1", "b": "2"}, {"a": "1", "c": "3"}) == "b changed (2 -> nothing); c changed (nothing -> 3)"
    assert differences({"a": "1"}, {"a": "1"}) == ""


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlruns").write_text("")
    with pytest.raises(UserError, match=r"tracking\.root"):
        _open(tmp_path / "mlruns")
