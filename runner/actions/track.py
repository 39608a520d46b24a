"""`action=track [study.name=NAME|latest]`: rebuilds the MLflow view of a study from its records."""

from runner.actions.ground import root_of
from runner.config import Settings
from runner.execution.study import named_study


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.tracking.mlflow_tracker import track_study

    root = root_of(settings)
    paths = named_study(root, settings.study.name, settings.study.experiment)
    print(track_study(root, paths, settings.tracking))
    return 0
