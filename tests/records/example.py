"""A launch record that is whole, for tests."""

from typing import Any

from runner.records.schema import Command, EngineIdentity, LaunchRecord, PhaseRecord


def launch_record(**changes: Any) -> LaunchRecord:
    """Measured launch of arm `baseline` in block 0 with one decode phase; `changes` replace fields."""
    fields: dict[str, Any] = {
        "study": "s",
        "launch": "b00-p00-baseline",
        "arm": "baseline",
        "levels": {"mscclpp": "off"},
        "block": 0,
        "engine": EngineIdentity(kind="simulated", version="0.5.9", build="x", simulated=True),
        "command": Command(argv=("python", "-m", "x")),
        "started_at": 100.0,
        "ended_at": 160.0,
        "gpu_seconds": 480.0,
        "outcome": "ok",
        "phases": (PhaseRecord(phase="decode_c1", valid=True, concurrency=1, metrics={"tpot_p50_ms": 20.0}),),
    }
    return LaunchRecord.model_validate({**fields, **changes})
