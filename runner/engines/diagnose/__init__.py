"""Why a server did not start, died, hangs or is fine: ordered evidence from its log and from what is known beside the log."""

from collections.abc import Mapping

from runner.engines.diagnose.model import CLASSES, HEALTHY, REFUSALS, Diagnosis

__all__ = ["CLASSES", "HEALTHY", "REFUSALS", "Diagnosis", "diagnose"]


def diagnose(text: str, context: Mapping[str, object] | None = None) -> Diagnosis:
    """The failure class of a server log. See `judge.py` (this first version knows no rule yet and says unknown)."""
    known = CLASSES["unknown"]
    return Diagnosis(kind="unknown", confidence=0.1, cause=known.cause, remedy=known.remedy, retry=known.retry)
