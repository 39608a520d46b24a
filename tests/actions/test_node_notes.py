"""Topology and probe beside the records: what is known of the node, and where nothing is known, that."""

from pathlib import Path

import pytest

from runner.actions import doctor
from runner.actions.checks import facts
from runner.actions.checks.facts import GpuFacts
from runner.actions.ground import Ground
from runner.actions.node_notes import note_node, topology_text
from runner.actions.settle import keep_floor, study_floor
from runner.errors import UserError
from runner.records.files import read_json, write_json
from runner.records.paths import RootPaths
from tests.actions.example import settings_of
from tests.execution.fakes import FakeNode

TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-31\t0\nGPU1\tSYS\t X \t32-63\t1\n"
PROBE = {"schema": 1, "node": "eight", "host": "h", "at": 1.0, "backend": "nccl", "ranks": 8, "python": "p", "torch": "2", "algorithms": {}}


def ground_of(root: Path, kind: str) -> Ground:
    return Ground(settings_of(root), RootPaths(root), kind, "0.5.21", None, None)


def test_the_doctors_findings_and_the_matrix_of_this_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "gpu_facts", lambda: GpuFacts(topology=TOPOLOGY))
    monkeypatch.setattr(doctor, "check_gpus", lambda *_: [doctor.fail("gpus", "2 of 8 are visible", "look at the driver")])
    text = topology_text(ground_of(tmp_path, "sglang"), [FakeNode("here")], host="here")
    assert "here, " in text and "FAIL  gpus: 2 of 8 are visible" in text and "-> look at the driver" in text
    assert text.endswith(f"nvidia-smi topo -m\n{TOPOLOGY}\n")


def test_another_machine_and_a_simulated_node_are_not_made_up(tmp_path: Path) -> None:
    text = topology_text(ground_of(tmp_path, "sglang"), [FakeNode("far"), FakeNode("farther")], host="here")
    assert "far: no GPU seen, driver not told; driven from here" in text and "nvidia-smi topo -m\nmatrix of farther" in text
    assert topology_text(ground_of(tmp_path, "simulated"), [FakeNode("here")], host="here").startswith("SIMULATED: node eight")


FLOOR = {"schema": 1, "node": "eight", "engine": "0.5.21", "launches": 8, "entries": []}


def test_a_study_keeps_the_floor_that_it_began_with(tmp_path: Path) -> None:
    learned, root = tmp_path / "nodes/eight/noise_floor.json", RootPaths(tmp_path)
    ground = ground_of(tmp_path, "sglang")
    assert keep_floor(ground, root.study("before"), begun=False) is None
    write_json(learned, FLOOR)
    assert keep_floor(ground, root.study("before"), begun=True) is None, "what it began without it is judged without"
    kept = keep_floor(ground, root.study("after"), begun=False)
    assert kept is not None and kept.launches == 8
    write_json(learned, FLOOR | {"launches": 99})
    assert keep_floor(ground, root.study("after"), begun=True) == kept == study_floor(root.study("after"))
    assert keep_floor(ground_of(tmp_path, "simulated"), root.study("pretended"), begun=False) is None
    root.study("after").noise_floor.write_text('{"launches": "many"}')
    with pytest.raises(UserError, match="is no noise floor"):
        study_floor(root.study("after"))


def test_the_probe_goes_with_a_real_study_and_the_first_notes_stay(tmp_path: Path) -> None:
    write_json(tmp_path / "nodes/eight/probe.json", PROBE)
    root = RootPaths(tmp_path)
    for kind, name in (("sglang", "real"), ("simulated", "pretended")):
        note_node(ground_of(tmp_path, kind), root.study(name), [FakeNode("far")]).join()
    assert read_json(root.study("real").probe)["torch"] == "2" and not root.study("pretended").probe.exists()
    before = root.study("real").topology.read_text()
    note_node(ground_of(tmp_path, "simulated"), root.study("real"), []).join()
    assert root.study("real").topology.read_text() == before
