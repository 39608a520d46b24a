"""The load contract: what execution asks for and what it gets back."""

from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from runner.records.schema import Fingerprint, PhaseRecord
from runner.spec.base import Strict
from runner.spec.model import ModelSpec
from runner.spec.protocol import Limits
from runner.spec.workload import PhaseSpec

if TYPE_CHECKING:
    from runner.loadgen.profile import Profile


class PhaseOrder(Strict):
    """One phase to drive. Prompts come from `seed` alone, so they are the same for every arm of a block and never repeat
    within a launch. `folder`: absolute, artifacts are written there; `study_folder` makes their paths relative."""

    name: str
    phase: PhaseSpec
    url: str
    model: ModelSpec
    seed: int
    block: int = 0
    stream: int = Field(default=0, description="which prompt stream of the launch: warm-up and measured ones differ")
    limits: Limits = Limits()
    scale: float = 1.0
    workers: int = 1
    folder: str
    study_folder: str
    scrape: bool = True
    warmup: bool = True
    warmup_output: int | None = Field(default=None, ge=1, description="output tokens of warm-up requests; null: as measured")
    server_pid: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    simulated: bool = Field(default=False, description="the server is the simulated engine: a profile says so")


class GuardOrder(Strict):
    """The fixed prompts of the output guard."""

    url: str
    model: ModelSpec
    prompts: int = 4
    tokens: int = 16
    seed: int = 11
    tasks: str | None = None


class LoadDriver(Protocol):
    """Drives load against one server from its own process. One driver lives as long as its node worker, so that a phase
    starts its first request within 0.3 s."""

    def fingerprint(self, order: GuardOrder) -> Fingerprint: ...

    def run(self, order: PhaseOrder) -> PhaseRecord:
        """Warm-up at the shape, flush, measured window, checks. A server that dies gives a record with valid=False and the
        reason, never an exception; ClientBroken is raised when the client itself died."""

    def profile(self, order: PhaseOrder, steps: int = 8, gpu: bool = True) -> "Profile":
        """A short profile at the phase's load, after the measured phases; written beside the launch's files. Raises RuntimeError,
        TimeoutError or ValueError when there is no usable trace."""

    def close(self) -> None: ...


class ClientBroken(Exception):
    """The load client itself failed; the launch is repeated, nothing is concluded about the arm."""


def order_json(order: Strict) -> dict[str, Any]:
    return order.model_dump(mode="json", by_alias=True)
