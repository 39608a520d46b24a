"""What the driver asks of a worker: plain data, no pydantic, so that the worker starts in a blink."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LengthRecipe:
    """Mirror of spec.workload.Lengths."""

    kind: str = "fixed"
    value: int = 256
    low: int = 1
    high: int = 32768
    sigma: float = 0.5


@dataclass(frozen=True)
class Job:
    """One load to drive. `index_start`/`index_step` split one phase over several workers (worker k of n takes k, k+n, ...).

    `until`: "seconds" sends for `seconds`; "requests" sends `requests`; "steady" sends until the steadiness test passes or
    `seconds` are over (warm-up). `rounds`: a closed loop tries for this many requests a stream within twice `seconds`.
    `start_at_ns`: common monotonic start of several workers; 0 is at once. Timeouts in seconds. `result`: file that
    the rows are written to."""

    url: str
    route: str = "generate"
    model: str = "model"
    arrival: str = "closed"
    concurrency: int = 1
    rate: float = 0.0
    burstiness: float = 1.0
    until: str = "seconds"
    seconds: float = 1.0
    requests: int = 0
    rounds: int = 3
    seed: int = 0
    stream: str = ""
    vocab_size: int = 4096
    special: tuple[int, ...] = (0, 1, 2)
    input: LengthRecipe = LengthRecipe()
    output: LengthRecipe = LengthRecipe(value=128)
    max_context: int = 32768
    shared_prefix: int = 0
    prefix_groups: int = 1
    dataset: str = "random_ids"
    dataset_path: str | None = None
    model_path: str | None = None
    index_start: int = 0
    index_step: int = 1
    start_at_ns: int = 0
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 900.0
    stall_timeout_s: float = 300.0
    result: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Job":
        """Raises TypeError for an unknown key."""
        fields = dict(value)
        for name in ("input", "output"):
            fields[name] = LengthRecipe(**fields[name])
        fields["special"] = tuple(fields["special"])
        return Job(**fields)
