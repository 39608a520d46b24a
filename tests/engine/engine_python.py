"""The interpreter of the real engine's environment."""

import os
from pathlib import Path

ENGINE_PYTHON = os.environ.get("ENGINE_PYTHON") or str(Path(__file__).resolve().parent.parent.parent / ".venv-engine" / "bin" / "python")
