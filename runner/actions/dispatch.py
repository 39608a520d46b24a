"""Which function performs which action. Modules are imported only when their action is asked for."""

from importlib import import_module

from runner.config import Settings
from runner.errors import UserError, instead

ACTIONS = {
    "run": "runner.actions.run",
    "plan": "runner.actions.plan",
    "resolve": "runner.actions.resolve",
    "report": "runner.actions.report",
    "track": "runner.actions.track",
    "analyze": "runner.actions.analyze",
    "diagnose": "runner.actions.diagnose",
    "evidence": "runner.actions.evidence",
    "budget": "runner.actions.budget",
    "probe": "runner.actions.probe",
    "doctor": "runner.actions.doctor",
    "clean": "runner.actions.clean",
    "audit": "runner.actions.audit",
    "schedule": "runner.actions.schedule",
    "accept": "runner.actions.accept",
}


def perform(settings: Settings, overrides: list[str]) -> int:
    """Performs `settings.action`; returns the exit code. `overrides` are the words of the command line, for the record.
    Raises RunnerError."""
    if settings.action not in ACTIONS:
        raise UserError(f"there is no action {settings.action!r}{instead(settings.action, ACTIONS)}")
    code: int = import_module(ACTIONS[settings.action]).perform(settings, overrides)
    return code
