"""Why a server did not start, died, hangs or is fine: ordered evidence from its log and from what is known beside the log."""

from runner.engines.diagnose.judge import diagnose
from runner.engines.diagnose.model import CLASSES, HEALTHY, REFUSALS, Diagnosis

__all__ = ["CLASSES", "HEALTHY", "REFUSALS", "Diagnosis", "diagnose"]
