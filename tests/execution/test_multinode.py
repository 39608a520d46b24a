"""Two raylets: blocks run in parallel, each whole on one node; killing a raylet in the middle loses nothing."""

from collections import Counter
from pathlib import Path

import pytest

from tests.execution.clusters import cluster_of, entries, lose_machine, nodes_of_blocks, run_study
from tests.execution.conftest import wait_for_none


@pytest.mark.cluster
def test_blocks_stay_whole_and_a_killed_raylet_loses_nothing(tmp_path: Path) -> None:
    with cluster_of(2) as cluster:
        victims = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]

        def on_done(count: int) -> None:
            if count == 4:
                lose_machine(victims[0])

        listener = run_study(tmp_path, cluster.address, blocks=4, load_s=0.3, on_done=on_done)
        assert wait_for_none(tmp_path, 20.0) == []
    finished = Counter(entry["launch"]["launch"] for entry in entries(tmp_path) if entry["kind"] == "launch_finished")
    assert all(count == 1 for count in finished.values()), "a launch was counted twice"
    blocks = nodes_of_blocks(tmp_path)
    assert all(len(names) == 1 for names in blocks.values()), blocks
    assert len({name for names in blocks.values() for name in names}) == 2, "both nodes worked"
    measured = Counter(entry["launch"]["arm"] for entry in entries(tmp_path) if entry["kind"] == "launch_finished")
    assert all(measured[arm] >= 4 for arm in ("baseline", "fast", "slow")), f"the lost launches were not made up for: {measured}"
    assert any("was lost" in note for note in listener.notes), listener.notes
