"""The communication budget beside what was measured: an upper bound that a communication flag cannot pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.records.decision import Decision
from runner.records.paths import StudyPaths
from runner.records.schema import LaunchRecord


@dataclass(frozen=True)
class BudgetSection:
    rows: tuple[dict[str, str], ...]
    note: str
    findings: tuple[str, ...] = ()


def budget_section(study: StudyPaths, decision: Decision, launches: Sequence[LaunchRecord]) -> BudgetSection | None:
    """None where the study's configuration is not there to compute it from."""
    return None
