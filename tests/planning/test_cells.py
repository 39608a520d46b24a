"""Grid to cells: conditional factors, exclusions, inclusions, and what a person can write wrong."""

import pytest

from runner.config import Settings
from runner.errors import UserError
from runner.planning.cells import expand

from .conftest import Compose


def replaced(settings: Settings, **values: object) -> Settings:
    return settings.model_copy(update=values)


def test_forty_eight_raw_cells_are_thirty_two_legal_ones(compose: Compose) -> None:
    grid = expand(compose("+experiment=overlap_grid"))
    assert (grid.raw, len(grid.cells)) == (48, 32)
    assert all(("mscclpp_max_bytes" in cell) == (cell["mscclpp"] == "on") for cell in grid.cells)
    assert len({tuple(cell.items()) for cell in grid.cells}) == 32
    assert grid.baseline in grid.cells
    assert any("16 combinations differ only in a factor that does not apply" in note for note in grid.notes)


def test_exclusions_and_inclusions(compose: Compose) -> None:
    settings = compose("+experiment=overlap_grid")
    fewer = expand(replaced(settings, exclude=({"two_batch_overlap": "on"},)))
    assert len(fewer.cells) == 16
    assert any("24 combinations excluded" in note or "16 combinations excluded" in note for note in fewer.notes)
    one = expand(replaced(settings, grid={"mscclpp": ("off",)}, include=({"mscclpp": "on", "mscclpp_max_bytes": "8MB"},)))
    assert {"mscclpp": "on", "mscclpp_max_bytes": "8MB"}.items() <= one.cells[1].items()


def test_a_baseline_outside_the_grid_is_added(compose: Compose) -> None:
    grid = expand(compose("+experiment=mscclpp_bytes"))
    assert grid.raw == 6
    assert grid.baseline == {"mscclpp": "off"}
    assert grid.cells[-1] == grid.baseline


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("grid", {"mscclpp": ("maybe",)}, "grid.mscclpp: factor mscclpp has no level 'maybe'; choices: off, on"),
        ("grid", {"mscclpp_max_bytes": ("1M",)}, "grid.mscclpp_max_bytes: '1M': the unit is mandatory"),
        ("grid", {"mscclpp_max_bytes": ("1048576",)}, "unit is mandatory"),
        ("grid", {"mscclpp_max_bytes": ("3MB",)}, "only powers of two"),
        ("baseline", {"mscclpp": "perhaps"}, "baseline.mscclpp: factor mscclpp has no level 'perhaps'"),
        (
            "exclude",
            ({"mscclp": "on"},),
            "exclude: 'mscclp' is not a factor of this experiment .did you mean 'mscclpp'..; choices: mscclpp",
        ),
        ("include", ({"custom_all_reduce": "off"},), "name it under baseline: too"),
        ("exclude", ({"mscclpp": "off"},), "removes the baseline"),
    ],
)
def test_what_a_person_writes_wrong(compose: Compose, key: str, value: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        expand(replaced(compose("+experiment=overlap_grid"), **{key: value}))


def test_a_factor_that_applies_nowhere_is_named(compose: Compose) -> None:
    settings = compose("+experiment=overlap_grid")
    with pytest.raises(UserError, match=r"grid.mscclpp_max_bytes applies nowhere: it exists only where mscclpp == on"):
        expand(replaced(settings, grid={"mscclpp_max_bytes": ("1MB",)}, baseline={}))
