"""What a plan rests on: the engine is asked as if on the node, also where its interpreter sees no GPU."""

from pathlib import Path

import pytest

from runner.actions.ground import Ground, absent_packages, resolver
from runner.engines import gpus, resolve
from runner.engines.resolve import Resolution, ResolveRequest
from runner.records.paths import RootPaths
from runner.records.schema import EngineIdentity
from tests.actions.example import settings_of


@pytest.mark.parametrize(("kind", "here", "node", "named"), [
    ("sglang", 0, 8, True), ("sglang", 8, 8, False), ("container", 8, 8, True), ("sglang", 0, 0, False),
])  # fmt: skip
def test_an_engine_that_sees_no_gpu_is_told_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, here: int, node: int, named: bool
) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(python: str, requests: list[ResolveRequest], **_: object) -> list[Resolution]:
        asked.extend(request.argv for request in requests)
        return []

    monkeypatch.setattr(resolve, "resolve_all", answer)
    monkeypatch.setattr(gpus, "visible_count", lambda: here)
    identity = EngineIdentity(kind=kind, version="0.5.23", build="b", python="python")
    ground = Ground(settings_of(tmp_path, node={"gpus": node}), RootPaths(tmp_path), kind, "0.5.23", None, identity)
    ask = resolver(ground)
    assert ask is not None
    ask([ResolveRequest(key="a", argv=("--tp-size", "8"))])
    assert asked == [("--tp-size", "8", "--device", "cuda") if named else ("--tp-size", "8")]


def test_packages_that_the_simulated_environment_lacks(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, engine={"kind": "simulated"})
    assert "mscclpp" in absent_packages(Ground(settings, RootPaths(tmp_path), "simulated", "0.5.15", None, None))
    assert absent_packages(Ground(settings, RootPaths(tmp_path), "attached", "0.5.15", None, None)) == frozenset()
