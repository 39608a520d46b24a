"""Nights of the small plan, made from nothing but numbers. Not a test file."""

from pathlib import Path
from typing import Any

import numpy as np

from runner.actions.ground import Ground
from runner.actions.history import EXPERIMENT, History, save_history
from runner.actions.nightly import NightWatch
from runner.execution.study import OpenStudy, open_study
from runner.records.night import Night, Observed
from runner.records.paths import RootPaths
from runner.records.schema import LaunchRecord, PhaseRecord
from tests.actions.example import settings_of
from tests.execution.example import small_plan
from tests.records.example import launch_record

ARMS = ("baseline", "fast", "slow")
TPOT = {"baseline": 20.0, "fast": 18.0, "slow": 22.0}
DAY = 86400.0


def nights(count: int, sd: float = 0.002, **changes: Any) -> list[Night]:
    """Quiet nights of three launches an arm, newest last, before time 0."""
    rng = np.random.default_rng(20261)
    made = []
    for index in range(count):
        values = {f"{arm}|decode_c1|tpot_p50_ms": tuple(TPOT[arm] * np.exp(rng.normal(0, sd, 3))) for arm in ARMS}
        fields: dict[str, Any] = {"identity": {EXPERIMENT: "small", "driver": "580"}, "outcome": "quiet", **changes}
        made.append(Night(study=f"night-{index}", at=(index - count) * DAY, values=values, **fields))
    return made


def with_history(root: Path, past: list[Night], simulated: bool = True) -> None:
    history = History(
        node="eight", simulated=simulated, nights=tuple(past), observed={night.study: Observed(sm_clock_mhz=2300) for night in past}
    )
    save_history(RootPaths(root), history)


def ground_of(root: Path, **changes: Any) -> Ground:
    protocol = {"primary": [{"metric": "tpot_p50_ms", "kind": "decode"}]}
    settings = settings_of(root, nightly=True, phases=["decode_c1"], **{"protocol": protocol, **changes})
    return Ground(settings, RootPaths(root), "simulated", "0.5.9", None, None)


def study_of(root: Path, name: str = "tonight", **changes: Any) -> OpenStudy:
    return open_study(RootPaths(root), small_plan(**changes), name=name, new=False, config={})


def launch(study: OpenStudy, arm: str, block: int, factor: float = 1.0, clock: float = 2300.0, **changes: Any) -> LaunchRecord:
    """A finished launch, written to the journal; TPOT is the arm's usual one times `factor`."""
    phase = PhaseRecord.model_validate(
        {
            "phase": "decode_c1",
            "valid": True,
            "metrics": {"tpot_p50_ms": TPOT[arm] * factor},
            "telemetry": {"sm_clock_mhz_p50": clock, "power_w_mean": 500, "temperature_c_max": 60},
        }
    )
    made = launch_record(
        **{
            "study": study.paths.name,
            "launch": f"b{block:02d}-{arm}",
            "arm": arm,
            "block": block,
            "started_at": 100.0 + block,
            "phases": (phase,),
            **changes,
        }
    )
    study.journal.append("launch_finished", launch_id=made.launch, launch=made.model_dump(mode="json", by_alias=True))
    return made


def watch_of(root: Path, study: OpenStudy, **changes: Any) -> NightWatch:
    return NightWatch(ground_of(root, **changes), study)
