"""Launch-to-launch and step-to-step noise, seeded by (simulation.seed, launch_index, arm): the same launch can be had again."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLOW_MODE_SHARE = 0.3  # of launches that fall into the slow mode of a bimodal noise
STEP_MEMORY = 0.98  # correlation of neighbouring steps' noise
COLD_STEPS = {"decode": 30.0, "prefill": 3.0}  # after so many passes of a shape its cold start is down to 1/e


@dataclass(frozen=True)
class LaunchFactors:
    """What one launch is multiplied by, apart from steps and cold shapes."""

    decode: float
    prefill: float
    load: float
    decode_by_rows: Mapping[int, float] = field(default_factory=dict)
    cold_stall_s: float = 0.0

    def decode_at(self, rows: int) -> float:
        """Factor of a decode step of `rows` rows: the launch's, times that of the nearest row count that has its own noise."""
        if not self.decode_by_rows:
            return self.decode
        nearest = min(self.decode_by_rows, key=lambda known: (abs(math.log(known / max(1, rows))), known))
        return self.decode * self.decode_by_rows[nearest]


def launch_factors(simulation: Mapping[str, Any], launch_index: int, arm: str) -> LaunchFactors:
    """The launch's own factors. `simulation` is spec.engine.Simulation as a mapping."""
    draw = random.Random(f"{simulation['seed']}/{launch_index}/{arm}")
    sigma = simulation["launch_noise_pct"] / 100
    shape = simulation["noise_shape"]
    common, decode, prefill = (_unit(draw, shape) for _ in range(3))
    shift = 0.0
    if shape == "bimodal" and draw.random() < SLOW_MODE_SHARE:
        shift += math.log1p(simulation["bimodal_gap_pct"] / 100)
    if shape == "drift":
        # a random walk over the study's launches, the same for every arm that sits at this place of the order
        walk = random.Random(f"{simulation['seed']}/walk")
        shift += sum(walk.gauss(0, sigma / 2) for _ in range(launch_index))
    shift += launch_index * math.log1p(simulation["drift_pct_per_launch"] / 100)
    load = 1.0 + 0.02 * abs(draw.gauss(0, 1))
    if launch_index == 0:
        slower = 1 + simulation["first_launch_slower_pct"] / 100
        shift += math.log(slower)
        load *= slower
    by_rows = {
        int(rows): math.exp(percent / 100 * random.Random(f"{simulation['seed']}/{launch_index}/{arm}/rows {rows}").gauss(0, 1))
        for rows, percent in simulation.get("decode_noise_pct", {}).items()
    }
    shift_of_level = 0.0
    for level in sorted(set(arm.split("+")) & set(simulation.get("level_noise_pct", {}))):
        percent = simulation["level_noise_pct"][level]
        shift_of_level += percent / 100 * random.Random(f"{simulation['seed']}/{launch_index}/{arm}/{level}").gauss(0, 1)
    own = random.Random(f"{simulation['seed']}/{launch_index}/{arm}/prefill").gauss(0, 1)
    return LaunchFactors(
        decode=math.exp(shift + shift_of_level + sigma * (0.8 * common + 0.6 * decode)),
        prefill=math.exp(shift + sigma * (0.8 * common + 0.6 * prefill) + simulation.get("prefill_noise_pct", 0.0) / 100 * own),
        load=load,
        decode_by_rows=by_rows,
        cold_stall_s=simulation.get("cold_stall_s", 0.0) if launch_index == 0 else 0.0,
    )


def _unit(draw: random.Random, shape: str) -> float:
    """One value of scale 1: normal, or Student's t with 2.5 degrees of freedom cut at 12."""
    value = draw.gauss(0, 1)
    if shape != "heavy":
        return value
    chi = draw.gammavariate(1.25, 2.0)
    return max(-12.0, min(12.0, value / math.sqrt(chi / 2.5)))


class StepNoise:
    """Multiplies each pass: the launch's factor, slowly wandering noise, and the cold start of a shape not seen before."""

    def __init__(self, factors: LaunchFactors, request_noise_pct: float, cold_start_pct: float, seed: str) -> None:
        self._factors = factors
        self._sigma = request_noise_pct / 100
        self._fresh = math.sqrt(1 - STEP_MEMORY**2)
        self._cold = cold_start_pct / 100
        self._seen: dict[tuple[str, int], int] = {}
        self._compiled: set[int] = set()
        self._random = random.Random(seed)
        self._state = self._random.gauss(0, 1)

    def factor(self, kind: str, size: int) -> float:
        """For one pass of `size` rows; `kind` is decode or prefill."""
        factor = self._factors.prefill if kind == "prefill" else self._factors.decode_at(size)
        if self._sigma:
            self._state = STEP_MEMORY * self._state + self._fresh * self._random.gauss(0, 1)
            factor *= 1 + self._sigma * self._state
        if self._cold:
            shape = (kind, max(1, size).bit_length())
            seen = self._seen.get(shape, 0)
            self._seen[shape] = seen + 1
            factor *= 1 + self._cold * math.exp(-seen / COLD_STEPS[kind])
        return max(factor, 0.05)

    def stall_s(self, tokens: int) -> float:
        """Seconds that a prefill pass waits for a kernel of its size (power of two) to be compiled; once a size and launch."""
        size = max(1, tokens).bit_length()
        if not self._factors.cold_stall_s or size in self._compiled:
            return 0.0
        self._compiled.add(size)
        return self._factors.cold_stall_s


def no_noise() -> StepNoise:
    """Every pass exactly as the cost model says."""
    return StepNoise(LaunchFactors(1.0, 1.0, 1.0), 0.0, 0.0, "none")
