"""Proof that a level was in force: markers in logs, /server_info, /metrics, a probe of the engine's environment, kernel names."""

from runner.engines.evidence.judge import engine_chose, judge_evidence
from runner.engines.evidence.sources import Sources

__all__ = ["Sources", "engine_chose", "judge_evidence"]
