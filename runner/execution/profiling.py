"""A short profile after the measured phases of one launch an arm: where the time goes, and which kernels really ran.

It stands outside the measured window: a profiled engine is slower, so nothing of this load is ever a result."""

import threading
from pathlib import Path

from runner.execution.job import LaunchJob
from runner.loadgen.base import LoadDriver, PhaseOrder
from runner.loadgen.profile import Profile, read_profile, start_profile, wait_for_traces
from runner.records.files import write_json
from runner.records.schema import PhaseRecord

STEPS = 8
RAMP_S = 2.0
TRACE_DEADLINE_S = 60.0


def profile_launch(job: LaunchJob, order: PhaseOrder, load: LoadDriver, folder: Path, gpu: bool) -> Profile:
    """Drives the phase's load, takes STEPS forward passes in its middle, reads the trace, writes profile.json into `folder`.
    Raises RuntimeError, TimeoutError or ValueError when there is no usable trace; the launch itself is not spoilt by that."""
    seconds = max(4 * RAMP_S, order.phase.seconds * order.scale)
    phase = order.phase.model_copy(update={"seconds": seconds, "warmup_seconds": 0, "requests": None})
    again = order.model_copy(update={"phase": phase, "scale": 1.0, "scrape": False, "name": f"{order.name}-profile", "stream": 10_000})
    driven: list[PhaseRecord] = []
    thread = threading.Thread(target=lambda: driven.append(load.run(again)), name="profiled-load")
    thread.start()
    try:
        thread.join(RAMP_S)
        start_profile(order.url, folder / "trace", STEPS, gpu)
        profile = read_profile(wait_for_traces(folder / "trace", TRACE_DEADLINE_S), STEPS)
    finally:
        thread.join()
    profile = profile.model_copy(update={"traces": tuple(Path(path).name for path in profile.traces), "simulated": order_simulated(job)})
    write_json(folder / "profile.json", {"phase": order.name, "steps": STEPS, **profile.model_dump(mode="json")})
    return profile


def order_simulated(job: LaunchJob) -> bool:
    return job.order.engine.kind == "simulated"
