"""The budget's check values through the entry point, where its inputs come from, and that it stays light."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.actions.budget import node_budget, ranks_of
from runner.engines.probing.stored import Algorithm, NodeProbe, Point, probe_path, stored_probe
from runner.errors import UserError
from runner.records.files import write_json, write_text
from runner.records.paths import RootPaths
from runner.spec.node import LinkCost
from tests.actions.example import settings_of


def test_the_check_values_as_a_person_asks_for_them(tmp_path: Path) -> None:
    words = [
        "action=budget",
        "json=true",
        "model.hidden_size=5632",
        "model.num_layers=78",
        "node.link_gb_s=63",
        f"tracking.root={tmp_path}",
    ]
    code = "import sys; from runner.__main__ import main\ntry:\n    main()\nfinally:\n    print(sorted({'ray', 'mlflow', 'scipy', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]", "heavy libraries were imported"
    rows = {(row["tokens"], row["algorithm"]): row for row in json.loads(done.stdout)["rows"]}
    for tokens, us, ms in ((1, 0.313, 0.049), (128, 40.05, 6.25), (1024, 320.4, 49.98)):
        row = rows[tokens, "bandwidth_only"]
        assert row["us"] == pytest.approx(us, rel=2e-3) and row["ms_per_pass"] == pytest.approx(ms, rel=5e-3)
        assert set(row) == {"tokens", "bytes", "algorithm", "us", "ms_per_pass", "share_of_tpot", "bound_pct"}


def decision(root: Path, study: str, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "study": study,
        "engine": {"kind": "sglang", "simulated": False},
        "node": "eight",
        "model": "m",
        "baseline": "baseline",
        "arms": [{"name": "baseline", "values": {"decode_c1": {"tpot_p50_ms": 40.0}}}],
    }
    write_json(root / "studies" / study / "decision.json", {**fields, **changes})


def test_measured_tpot_gives_the_share_and_the_bound(tmp_path: Path) -> None:
    decision(tmp_path, "real")
    result = node_budget(settings_of(tmp_path))
    row = next(row for row in result["rows"] if row["tokens"] == 1 and row["algorithm"] == "nccl")
    assert row["share_of_tpot"] == pytest.approx(32.03 / 40, rel=1e-3) and result["tpot_from"] == "real"


@pytest.mark.parametrize("changes", [{"engine": {"simulated": True}}, {"node": "other"}, {"model": "other"}])
def test_times_that_are_not_this_nodes_are_never_used(tmp_path: Path, changes: dict[str, Any]) -> None:
    decision(tmp_path, "s", **changes)
    result = node_budget(settings_of(tmp_path))
    assert result["tpot_from"] is None and all(row["bound_pct"] is None for row in result["rows"])


def probe_of(node: str) -> NodeProbe:
    algorithm = Algorithm(points=(Point(bytes=4096, us=(8.0,)),), fit=LinkCost(alpha_us=8.0, gb_s=40.0, source="measured here"))
    return NodeProbe(
        node=node,
        host="h",
        at=1.0,
        backend="nccl",
        ranks=8,
        python="/p",
        torch="2.11",
        algorithms={"nccl_graph": algorithm, "nccl": algorithm},
    )


def test_what_was_probed_on_the_node_goes_over_what_was_published(tmp_path: Path) -> None:
    write_json(probe_path(RootPaths(tmp_path), "eight"), probe_of("eight").model_dump(mode="json", by_alias=True))
    result = node_budget(settings_of(tmp_path))
    assert result["measured_here"] == ["nccl", "nccl_graph"] and result["sources"]["nccl"] == "measured here"
    row = next(row for row in result["rows"] if row["tokens"] == 1 and row["algorithm"] == "nccl")
    assert row["us"] == pytest.approx(8.0 + 1.75 * 11264 / 40e3, rel=1e-3)


def test_a_damaged_probe_is_named(tmp_path: Path) -> None:
    write_text(probe_path(RootPaths(tmp_path), "eight"), '{"schema": 1}')
    with pytest.raises(UserError, match="action=probe"):
        stored_probe(RootPaths(tmp_path), "eight")


def test_rows_of_a_pass_follow_the_workload_and_ranks_the_options(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        pins={"chunked-prefill-size": 2048, "tp-size": 4},
        model={"name": "m", "hidden_size": 64, "num_layers": 2, "draft_tokens": 3},
    )
    result = node_budget(settings)
    assert {phase["phase"]: phase["tokens"] for phase in result["phases"]} == {"decode_c1": 3, "decode_c16": 48, "prefill": 1024}
    assert result["ranks"] == 4 == ranks_of(settings, dict(settings.pins)) and ranks_of(settings, {}) == 8


def test_an_unknown_phase_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="decode_c16"):
        node_budget(settings_of(tmp_path, phases=["decode_c99"]))
