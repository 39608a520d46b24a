"""From records to arrays: what counts, and where it goes."""

import numpy as np

from runner.analysis.observations import block_table, observations
from tests.analysis.example import TPOT, launch


def value(number: float) -> dict[str, dict[str, float]]:
    return {"decode_c1": {TPOT: number}}


def test_rows_keep_what_is_not_valid_but_mark_it() -> None:
    rows = observations(
        [
            launch("a", 0, 1, metrics=value(2.0)),
            launch("a", 1, metrics=value(3.0), valid=False),
            launch("a", 2, metrics=value(0.0)),
            launch("a", 3, metrics=value(4.0), purpose="prime"),
        ]
    )
    assert rows.valid.tolist() == [True, False, False]
    assert rows.log_value[0] == np.log(2.0)
    assert np.isnan(rows.log_value[1:]).all()
    assert (rows.block.tolist(), rows.position.tolist(), rows.phase[0], rows.metric[0]) == ([0, 1, 2], [1, 0, 0], "decode_c1", TPOT)


def test_no_launch_gives_empty_arrays() -> None:
    assert observations([]).log_value.shape == (0,)


def test_table_places_launches_and_the_last_valid_attempt_counts() -> None:
    records = [
        launch("baseline", 5, 1, metrics=value(1.0)),
        launch("a", 5, 0, metrics=value(9.0)),
        launch("a", 5, 0, metrics=value(2.0), attempt=2),
        launch("a", 7, 0, metrics=value(3.0)),
        launch("baseline", 7, 1, outcome="failed"),
    ]
    table = block_table(records, "decode_c1", TPOT, ("baseline", "a"))
    assert table.blocks == (5, 7)
    assert table.mask.tolist() == [[True, True], [False, True]]
    assert table.values[0, 1] == np.log(2.0)
    assert table.slots[0].tolist() == [1, 0]
    assert table.first == (0, 1)


def test_a_first_launch_that_is_not_valid_is_no_first_launch() -> None:
    records = [launch("a", 0, 0, metrics=value(1.0), valid=False), launch("baseline", 0, 1, metrics=value(1.0))]
    assert block_table(records, "decode_c1", TPOT, ("baseline", "a")).first is None
