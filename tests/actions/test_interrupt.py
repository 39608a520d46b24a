"""Ctrl-C while the command is still importing: an end without a trace, exit code 130."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = """
import os, signal, sys
class Now:
    def find_spec(self, name, path=None, target=None):
        if name == "hydra":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Now())
from runner.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"
