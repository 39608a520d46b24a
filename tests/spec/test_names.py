"""Names and numbers that would only fail later are refused when they are read."""

import pytest
from pydantic import ValidationError

from runner.spec.engine import EngineSpec
from runner.spec.study import StudySpec


@pytest.mark.parametrize("name", ["../../x", "a b", ".hidden", "x/y", "", "n" * 121])
def test_a_study_name_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=r"letters, digits, dot, dash, underscore"):
        StudySpec(name=name)


def test_good_study_names() -> None:
    assert StudySpec(name="overlap_grid-20261129-190308").name and StudySpec(name="latest").name and StudySpec(name=None).name is None


@pytest.mark.parametrize("ports", [(5, 1), (22000, 21000), (80, 90), (60000, 70000)])
def test_a_port_range_that_is_none_is_refused(ports: tuple[int, int]) -> None:
    with pytest.raises(ValidationError, match="the lower first"):
        EngineSpec(port_range=ports)
