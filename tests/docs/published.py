"""A committed study: its records, and whether today's code judges them as its decision says."""

import io
import json
import re
import statistics
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.actions.settle import decide
from runner.analysis.judge import judge
from runner.analysis.noise import NoiseFloor
from runner.records.decision import Decision
from runner.records.files import read_json
from runner.records.paths import StudyPaths
from runner.records.plan import Plan
from runner.records.schema import LaunchRecord
from runner.spec.protocol import Protocol


def page_of(folder: Path) -> str:
    """The results' page on one line."""
    return re.sub(r"\s+", " ", (folder / "README.md").read_text())


def figures_beyond(page: str, passages: list[str], units: str) -> set[str]:
    """Figures with one of these `units` (an alternation) that stand on the page outside the passages."""
    for passage in passages:
        page = page.replace(passage, "")
    return set(re.findall(rf"\d[\d,.]*\d? (?:{units})(?![\w/])", page))


def metric(record: Mapping[str, Any], phase: str, name: str) -> float:
    return float(next(item for item in record["phases"] if item["phase"] == phase)["metrics"][name])


def own_cost(record: Mapping[str, Any]) -> float:
    """Seconds of a launch beyond the engine's start and stop, warm-up and measured windows."""
    load = sum(found["window_s"] + found["warmup_s"] for found in record["phases"])
    return float(record["ended_at"] - record["started_at"] - load - record["stages"]["start"] - record["stages"]["stop"])


@dataclass(frozen=True)
class Published:
    """`folder`: an experiment's results; `study`: the study's name inside study.tar.xz."""

    folder: Path
    study: str

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    @property
    def launches(self) -> list[dict[str, Any]]:
        return self.lines("launches.jsonl")

    @property
    def decision(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "decision.json").read_text()))

    @property
    def measured(self) -> list[dict[str, Any]]:
        return [record for record in self.launches if record["outcome"] == "ok" and record["purpose"] == "measure"]

    def of(self, arm: str, phase: str, name: str) -> list[float]:
        return [metric(record, phase, name) for record in self.measured if record["arm"] == arm]

    def mean(self, arm: str, phase: str, name: str) -> float:
        return statistics.mean(self.of(arm, phase, name))

    def spread(self, arm: str, phase: str, name: str) -> float:
        """Coefficient of variation, percent."""
        return 100 * statistics.stdev(self.of(arm, phase, name)) / self.mean(arm, phase, name)

    def arm(self, name: str) -> dict[str, Any]:
        return dict(next(item for item in self.decision["arms"] if item["name"] == name))

    def hypothesis(self, arm: str, phase: str) -> dict[str, Any]:
        return dict(next(item for item in self.arm(arm)["hypotheses"] if item["phase"] == phase))

    def judged_with(self, floor: NoiseFloor) -> Decision:
        """The study as it would be judged with another noise floor."""
        with tarfile.open(self.folder / "study.tar.xz") as archive:
            plan, config = (
                json.load(archive.extractfile(f"studies/{self.study}/{name}.json") or io.BytesIO()) for name in ("plan", "config")
            )
        records = [LaunchRecord.model_validate(record) for record in self.launches]
        return judge(Plan.model_validate(plan), records, Protocol.model_validate(config["protocol"]), noise=floor)

    def stage(self, name: str) -> float:
        return float(statistics.median(record["stages"].get(name, 0.0) for record in self.measured))

    def assert_judged_the_same(self, folder: Path) -> None:
        """Unpacks the study into `folder`, grades its logs again and judges it."""
        with tarfile.open(self.folder / "study.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        study = StudyPaths(folder / "studies" / self.study)
        _, records, decision = decide(study, Protocol.model_validate(read_json(study.config)["protocol"]), regrade=True)
        committed = Decision.model_validate(self.decision)
        assert [record.launch for record in records] == [record["launch"] for record in self.launches]
        assert decision.cells == committed.cells
        for now, then in zip(decision.arms, committed.arms, strict=True):
            assert (now.name, now.status, now.verdict, now.launches) == (then.name, then.status, then.verdict, then.launches)
            assert [(item.factor, item.level, item.grade) for item in now.evidence] == [
                (item.factor, item.level, item.grade) for item in then.evidence
            ]
            decided, told = ([item for item in arm.hypotheses if item.effect_pct is not None] for arm in (now, then))
            for mine, theirs in zip(decided, told, strict=True):
                assert (mine.phase, mine.metric, mine.verdict, mine.launches) == (
                    theirs.phase,
                    theirs.metric,
                    theirs.verdict,
                    theirs.launches,
                )
                for own, other in ((mine.effect_pct, theirs.effect_pct), (mine.low_pct, theirs.low_pct), (mine.high_pct, theirs.high_pct)):
                    assert own == other if other is None else own == pytest.approx(other, rel=1e-4)
