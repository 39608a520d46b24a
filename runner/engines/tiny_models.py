"""Makes the tiny models that experiments on a CPU or on random weights need, once, by the engine's interpreter."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from runner.engines.environment import base_environment, python_path
from runner.errors import UserError

SCRIPT = Path(__file__).with_name("tiny_models_script.py")


def made_model(name: str, folder: Path, python: str, extra_path: Sequence[str] = ()) -> Path:
    """The folder of the tiny model NAME below `folder`, made if absent. Raises UserError with the interpreter's words."""
    target = folder / name
    if (target / "config.json").is_file():
        return target
    environment = base_environment() | python_path(None, extra_path)
    done = subprocess.run(
        [python, str(SCRIPT), name, str(target)], capture_output=True, text=True, timeout=180, env=environment, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"could not make the tiny model {name} with {python}: {last}")
    return target
