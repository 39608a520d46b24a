"""All-reduces over gloo with the engine's interpreter, short: the whole path from the processes to the stored line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.actions.budget import node_budget
from runner.config import Settings
from runner.engines.environment import base_environment
from runner.engines.guard import GuardedOwner
from runner.engines.ledger import Ledger
from runner.engines.probing.all_reduce import ProbeFailed, ProbeOrder, measure_all_reduce
from runner.engines.probing.stored import stored_probe
from runner.records.paths import RootPaths
from tests.actions.example import settings_of

pytestmark = pytest.mark.engine
PYTHON = os.environ.get("ENGINE_PYTHON") or str(Path(__file__).parents[2] / ".venv-engine/bin/python")
ENV = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_gloo_over_two_processes(tmp_path: Path) -> None:
    order = ProbeOrder(backend="gloo", ranks=2, sizes=(4096, 65536, 1 << 20), rounds=3, budget_s=0.05, timeout_s=120)
    with GuardedOwner(Ledger(tmp_path, "probe")) as owner:
        probe = measure_all_reduce(order, PYTHON, owner, base_environment() | ENV, "cpu")
    gloo = probe.algorithms["gloo"]
    assert [point.bytes for point in gloo.points] == [4096, 65536, 1 << 20]
    assert all(len(point.us) == 3 and min(point.us) > 1 for point in gloo.points)
    # Not how fast: on a busy machine latency hides the bandwidth altogether.
    assert gloo.fit.alpha_us >= 0 and gloo.fit.gb_s > 0 and len(gloo.residual_pct) == 3
    assert gloo.fit.alpha_us <= max(max(point.us) for point in gloo.points)
    assert probe.env["NCCL_NVLS_ENABLE"] == "0" and probe.env["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"


def test_processes_that_wait_for_each_other_for_ever_are_ended(tmp_path: Path) -> None:
    order = ProbeOrder(backend="gloo", ranks=2, sizes=(4096, 8192), timeout_s=0.5)
    with GuardedOwner(Ledger(tmp_path, "probe")) as owner:
        with pytest.raises(ProbeFailed, match=r"did not end within 0\.5 s"):
            measure_all_reduce(order, PYTHON, owner, base_environment() | ENV, "cpu")
        assert owner_is_empty(tmp_path)


def owner_is_empty(folder: Path) -> bool:
    """Nothing that the ledger names, but the guard itself, is alive."""
    from runner.engines import process
    from runner.engines.ledger import books

    return not [
        entry for book in books(folder) for entry in book.entries if entry.role != "guard" and process.is_live(entry.pid, entry.start)
    ]


def test_the_action_stores_what_the_budget_uses(tmp_path: Path) -> None:
    words = ["action=probe", "json=true", "node=cpu", "engine=sglang", f"engine.python={PYTHON}", f"tracking.root={tmp_path}/mlruns"]
    done = subprocess.run(
        [sys.executable, "-m", "runner", *words, f"execution.lock_dir={tmp_path}/lock"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    sizes = [point["bytes"] for point in printed["algorithms"]["gloo"]["points"]]
    assert (sizes[0], sizes[-1]) == (4096, 64 << 20)
    probe = stored_probe(RootPaths(tmp_path / "mlruns"), "cpu")
    assert probe is not None and probe.ranks == 2
    settings: Settings = settings_of(tmp_path / "mlruns", node={"name": "cpu", "gpus": 2, "all_reduce": {}})
    assert node_budget(settings)["measured_here"] == ["gloo"]
