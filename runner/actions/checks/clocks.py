"""Would the GPUs run at the same speed tomorrow? Power limits, clocks, persistence, throttling."""

from runner.actions.checks.facts import GpuFacts
from runner.actions.checks.finding import Finding, ok, warn
from runner.actions.checks.gpu import all_equal


def check_clocks(facts: GpuFacts) -> list[Finding]:
    if not facts.limits:
        return []
    return [*_power(facts), *_clocks(facts), *_persistence(facts), *_throttle(facts)]


def _power(facts: GpuFacts) -> list[Finding]:
    known = [gpu for gpu in facts.limits if gpu.power_limit_w is not None]
    if not known:
        return [warn("power limit", "not told by the driver", "nvidia-smi -q -d POWER")]
    values = [gpu.power_limit_w for gpu in known]
    shown = "/".join(f"{value:.0f}" for value in sorted({value for value in values if value is not None})) + " W"
    if not all_equal(values):
        return [warn("power limit", f"differs between GPUs: {shown}", "one slow GPU slows all in tensor parallel: nvidia-smi -pl WATTS")]
    low = [gpu for gpu in known if gpu.power_default_w and gpu.power_limit_w and gpu.power_limit_w < gpu.power_default_w - 1]
    if low:
        default = low[0].power_default_w
        return [warn("power limit", f"{shown}, the default is {default:.0f} W", f"nvidia-smi -pl {default:.0f}, unless it is meant so")]
    return [ok("power limit", shown)]


def _clocks(facts: GpuFacts) -> list[Finding]:
    known = [gpu for gpu in facts.limits if gpu.sm_clock_max_mhz]
    if not known:
        return []
    shown = "/".join(str(value) for value in sorted({gpu.sm_clock_max_mhz or 0 for gpu in known}))
    now = "/".join(str(value) for value in sorted({gpu.sm_clock_mhz for gpu in known if gpu.sm_clock_mhz is not None}))
    low = [gpu for gpu in known if gpu.sm_clock_set_mhz and gpu.sm_clock_max_mhz and gpu.sm_clock_set_mhz < gpu.sm_clock_max_mhz]
    text = f"SM now {now or '?'} MHz, at most {shown} MHz"
    if low and not all_equal([gpu.sm_clock_set_mhz for gpu in known]):
        return [warn("clocks", f"{text}; set clocks differ between GPUs", "nvidia-smi -rac, or the same -ac for all")]
    if low:
        text += f", set to {low[0].sm_clock_set_mhz} MHz"
    return [ok("clocks", text)]


def _persistence(facts: GpuFacts) -> list[Finding]:
    off = [gpu.index for gpu in facts.limits if gpu.persistence is False]
    if off:
        which = ", ".join(map(str, off))
        return [
            warn(
                "persistence", f"off on GPU {which}: each launch waits for the driver, and set limits are lost", "nvidia-smi -pm 1 as root"
            )
        ]
    return [ok("persistence", "on")] if any(gpu.persistence for gpu in facts.limits) else []


def _throttle(facts: GpuFacts) -> list[Finding]:
    reasons = sorted({reason for state in facts.states for reason in state.throttle_reasons})
    if reasons:
        return [warn("throttling", ", ".join(reasons), "nvidia-smi -q -d PERFORMANCE; look at cooling and power supply")]
    heat = [state.temperature_c for state in facts.states if state.temperature_c is not None]
    return [ok("throttling", "none now" + (f"; {min(heat)} to {max(heat)} C" if heat else ""))]
