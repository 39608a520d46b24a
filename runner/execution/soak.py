"""Brings the GPUs into one temperature and clock band before a launch's load, so that no launch is measured colder or hotter than
the others. GPUs above the band are left alone to cool; otherwise a short unmeasured load is driven, since both temperature and clocks
settle only under load. A deadline ends it; what was reached is recorded, and nothing is judged by it."""

import time
from collections.abc import Callable, Sequence

from runner.engines.gpus import GpuState
from runner.records.schema import Soak
from runner.spec.protocol import Protocol

POLL_S = 0.5
HEAT_S = 5.0
"""Length of one unmeasured load."""


def is_asked(protocol: Protocol) -> bool:
    return protocol.soak_temperature_c is not None or protocol.soak_clock_mhz is not None


def soak(
    look: Callable[[], Sequence[GpuState]],
    protocol: Protocol,
    heat: Callable[[], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Soak:
    """Blocks until every GPU of `look` is in the protocol's bands, or `soak_deadline_s` is over. `heat` drives one short load.
    A quantity that no GPU offers cannot be waited for, which the reason says."""
    start, heated = clock(), 0
    while True:
        states = look()
        reason, hot = outside(states, protocol)
        over = clock() - start >= protocol.soak_deadline_s
        if not reason or not states or over:
            return Soak(
                reached=not reason,
                seconds=round(clock() - start, 3),
                heated=heated,
                temperature_c=tuple(state.temperature_c for state in states),
                sm_clock_mhz=tuple(state.sm_clock_mhz for state in states),
                reason=reason,
            )
        if hot:
            wait(POLL_S)
        else:
            heat()
            heated += 1


def outside(states: Sequence[GpuState], protocol: Protocol) -> tuple[str, bool]:
    """(what keeps the GPUs out of the bands, '' when nothing does; is one of them too hot?)."""
    if not states:
        return "no GPU is visible", False
    found, hot = [], False
    for name, unit, band, values in (
        ("temperature", "C", protocol.soak_temperature_c, [state.temperature_c for state in states]),
        ("SM clock", "MHz", protocol.soak_clock_mhz, [state.sm_clock_mhz for state in states]),
    ):
        if band is None:
            continue
        known = [value for value in values if value is not None]
        beyond = [value for value in known if not band[0] <= value <= band[1]]
        if not known:
            found.append(f"the GPUs do not say their {name}")
        elif beyond:
            found.append(f"{name} {min(beyond):g} to {max(beyond):g} {unit} on {len(beyond)} of {len(states)} GPUs")
        hot = hot or (unit == "C" and any(value > band[1] for value in known))
    return "; ".join(found), hot
