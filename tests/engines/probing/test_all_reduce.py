"""The probe's own arithmetic: slowest rank, fit, residuals, refusals. Processes are stood in for by small scripts."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.engines.guard import GuardedOwner
from runner.engines.ledger import Ledger
from runner.engines.probing.all_reduce import ProbeFailed, ProbeOrder, assemble, measure_all_reduce, probe_text
from runner.errors import UserError

SIZES = (4096, 65536, 1 << 20, 1 << 24)
ORDER = ProbeOrder(backend="nccl", ranks=8, sizes=SIZES, rounds=2)


def answer(extra_us: float = 0.0, gb_s: float = 20.0, names: tuple[str, ...] = ("nccl", "nccl_graph")) -> dict[str, Any]:
    """What one rank writes when an all-reduce takes 30 us (8 us in a graph) plus a ring at `gb_s`."""

    def points(alpha: float) -> dict[str, list[float]]:
        return {str(size): [alpha + extra_us + 2 * 7 / 8 * size / (gb_s * 1e3)] * 2 for size in SIZES}

    return {
        "torch": "2.11",
        "library": "2.28.3",
        "device": "a GPU",
        "algorithms": {name: {"calls": 9, "points": points(30.0 if name == "nccl" else 8.0)} for name in names},
        "notes": {},
    }


def test_the_line_behind_the_points_is_found_and_the_slowest_rank_counts() -> None:
    probe = assemble(ORDER, [answer()] * 7 + [answer(extra_us=2.0)], "python", "n", "0.5.15", {})
    assert probe.algorithms["nccl"].fit.alpha_us == pytest.approx(32.0, rel=0.01)
    assert probe.algorithms["nccl_graph"].fit.alpha_us == pytest.approx(10.0, rel=0.01)
    assert probe.algorithms["nccl"].fit.gb_s == pytest.approx(20.0, rel=0.01)
    assert max(abs(value) for value in probe.algorithms["nccl"].residual_pct) < 0.5
    assert set(probe.costs()) == {"nccl", "nccl_graph"}
    text = probe_text(probe)
    assert "16,777,216" in text and "nccl_graph: 10.00 us" in text


def test_a_way_that_one_rank_lacks_is_left_out() -> None:
    probe = assemble(ORDER, [answer()] * 7 + [answer(names=("nccl",))], "python", "n", None, {})
    assert set(probe.algorithms) == {"nccl"}


def test_nothing_measured_is_a_failure() -> None:
    with pytest.raises(ProbeFailed):
        assemble(ORDER, [{**answer(names=()), "notes": {"nccl_graph": "no capture"}}] * 8, "python", "n", None, {})


def script(folder: Path, body: str) -> str:
    """An executable that stands in for an interpreter."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_last_words_of_a_broken_rank_are_said_and_the_others_are_ended(tmp_path: Path) -> None:
    body = "import sys, time\nif sys.argv[3] == '1':\n    sys.exit('NCCL said no')\ntime.sleep(600)"
    with GuardedOwner(Ledger(tmp_path, "probe")) as owner, pytest.raises(ProbeFailed, match="rank 1 of 2 ended with 1: NCCL said no"):
        measure_all_reduce(ProbeOrder(backend="gloo", ranks=2), script(tmp_path, body), owner, os.environ, "n")


def test_every_process_gets_multicast_off(tmp_path: Path) -> None:
    body = "import os, sys\nsys.exit(os.environ['NCCL_NVLS_ENABLE'] + os.environ['TORCH_SYMM_MEM_DISABLE_MULTICAST'])"
    env = {**os.environ, "NCCL_NVLS_ENABLE": "1"}
    with GuardedOwner(Ledger(tmp_path, "probe")) as owner, pytest.raises(ProbeFailed, match=r"01$"):
        measure_all_reduce(ProbeOrder(backend="gloo", ranks=1), script(tmp_path, body), owner, env, "n")


def test_an_interpreter_without_torch_is_the_users_mistake(tmp_path: Path) -> None:
    body = "import sys\nsys.exit(\"ModuleNotFoundError: No module named 'torch'\")"
    with GuardedOwner(Ledger(tmp_path, "probe")) as owner, pytest.raises(UserError, match="has no torch"):
        measure_all_reduce(ProbeOrder(backend="gloo", ranks=2), script(tmp_path, body), owner, os.environ, "n")
