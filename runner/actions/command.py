"""`python -m runner [action=...] +experiment=NAME [key=value ...]`: Hydra's grammar in, one exit code out."""

import errno
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import hydra
import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from runner.actions.dispatch import perform
from runner.config import config_folder, explain_refusal, settings_from
from runner.errors import RunnerError

FULL_ERROR = "HYDRA_FULL_ERROR"
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""The disk is full or no longer takes anything: not the program's mistake, and the study can be resumed."""


@dataclass
class Outcome:
    """Exit code of the command; `composed` tells Hydra's own refusals (the user's mistake) from ours."""

    composed: bool = False
    code: int = 0


def _search_folders() -> list[Path]:
    from hydra.core.hydra_config import HydraConfig

    sources = HydraConfig.get().runtime.config_sources
    return [Path(source.path) for source in sources if source.schema == "file" and source.path]


def _command(config: DictConfig) -> int:
    from hydra.core.hydra_config import HydraConfig

    choices = {str(key): value for key, value in HydraConfig.get().runtime.choices.items()}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is something to end in order
        settings = settings_from(config, _search_folders(), choices)
        return perform(settings, list(HydraConfig.get().overrides.task))
    except RunnerError as error:
        print(f"{_prefix(error)}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        remedy = "give tracking.root=FOLDER that can be written" if error.errno == errno.EROFS else "make room"
        print(f"not finished: {error}; what was finished is kept: {remedy}, then start the same command again", file=sys.stderr)
        return 4
    except KeyboardInterrupt as stopped:
        print(f"interrupted: {stopped}" if str(stopped) else "interrupted", file=sys.stderr)
        return 130


def _prefix(error: RunnerError) -> str:
    return {2: "error", 4: "not finished", 75: "busy"}.get(error.exit_code, "error")


def main() -> None:
    """Never returns: ends the process with the exit code of design section 3."""
    outcome = Outcome()
    asked_for_trace = FULL_ERROR in os.environ
    os.environ.setdefault(FULL_ERROR, "1")  # else Hydra itself prints a trace for what it does not know, such as broken YAML

    @hydra.main(config_path=str(config_folder()), config_name="config", version_base="1.3")
    def task(config: DictConfig) -> None:
        outcome.composed = True
        if not asked_for_trace:
            os.environ.pop(FULL_ERROR, None)
        code = _command(config)
        outcome.code = outcome.code or code

    try:
        task()
    except SystemExit as stop:
        if not outcome.composed and stop.code not in (0, None):
            sys.exit(2)
        raise
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as refusal:
        if asked_for_trace or outcome.composed:
            raise
        print(f"error: {explain_refusal(refusal)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(outcome.code)
