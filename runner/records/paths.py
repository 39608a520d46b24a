"""Every file name of a study is a property of one class. Names made from user text cannot leave their folder."""

import re
from dataclasses import dataclass
from pathlib import Path


def safe_name(text: str) -> str:
    """A file name from user text: letters, digits, dot, dash, underscore; never empty, never hidden, at most 120 characters."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return cleaned[:120] or "unnamed"


@dataclass(frozen=True)
class RootPaths:
    """The results root (`mlruns`)."""

    root: Path

    @property
    def studies(self) -> Path:
        return self.root / "studies"

    @property
    def database(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def nodes(self) -> Path:
        """What is learned about nodes: noise floors, probes, launch costs."""
        return self.root / "nodes"

    def study(self, name: str) -> "StudyPaths":
        return StudyPaths(self.studies / safe_name(name))


@dataclass(frozen=True)
class LaunchPaths:
    """One launch's folder."""

    folder: Path

    @property
    def server_log(self) -> Path:
        return self.folder / "server.log"

    @property
    def record(self) -> Path:
        return self.folder / "launch.json"

    @property
    def server_info(self) -> Path:
        return self.folder / "server_info.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.txt"

    @property
    def order(self) -> Path:
        return self.folder / "order.json"

    def requests(self, phase: str) -> Path:
        return self.folder / f"{safe_name(phase)}.requests.parquet"

    def profile(self, phase: str) -> Path:
        return self.folder / f"{safe_name(phase)}.profile.json"

    def telemetry(self, phase: str) -> Path:
        return self.folder / f"{safe_name(phase)}.telemetry.jsonl"


@dataclass(frozen=True)
class StudyPaths:
    """One study's folder."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def decision(self) -> Path:
        return self.folder / "decision.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def night(self) -> Path:
        """Nightly studies only: the night's outcome over the node's history (`records/night.py`)."""
        return self.folder / "nightly.json"

    @property
    def topology(self) -> Path:
        """How the node's GPUs are joined, as `nvidia-smi topo -m` said when the study began; with the doctor's findings."""
        return self.folder / "topology.txt"

    @property
    def probe(self) -> Path:
        """The node's measured collectives (`action=probe`) as they were known when the study began."""
        return self.folder / "probe.json"

    @property
    def noise_floor(self) -> Path:
        """The node's noise floor as it was known when the study began; not there where none was."""
        return self.folder / "noise_floor.json"

    @property
    def truth(self) -> Path:
        """Simulated engine only: the true effects. Never read by the code that judges."""
        return self.folder / "truth.json"

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def lock(self) -> Path:
        return self.folder / "driver.lock"

    @property
    def tracking_state(self) -> Path:
        return self.folder / "tracking.json"

    @property
    def plots(self) -> Path:
        return self.folder / "plots"

    @property
    def launches(self) -> Path:
        return self.folder / "launches"

    def launch(self, launch_id: str) -> LaunchPaths:
        return LaunchPaths(self.launches / safe_name(launch_id))
