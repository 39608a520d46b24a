"""Audit as an action: a folder of sources goes in, one JSON object comes out; engines without a source are refused."""

import json
from pathlib import Path

import pytest

from runner.actions.audit import perform
from runner.errors import UserError
from tests.actions.example import settings_of

SOURCE = """
class PyMscclppCommunicator:
    def __init__(self, world_size, enable_mscclpp):
        if enable_mscclpp and world_size not in (8, 16):
            self.available = False
            return
"""


def test_the_gates_of_a_source_folder_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text('__version__ = "0.9.9"\n')
    (package / "pymscclpp.py").write_text(SOURCE)
    factors = {"mscclpp": {"name": "mscclpp", "levels": {"off": {}, "on": {}}}}
    assert perform(settings_of(tmp_path, engine={"kind": "sglang", "python": str(tmp_path / "site")}, factors=factors, json=True), []) == 0
    result = json.loads(capsys.readouterr().out)
    assert "text" not in result and "pymscclpp.py" in json.dumps(result)
    perform(settings_of(tmp_path, engine={"kind": "sglang", "python": str(tmp_path / "site")}, factors=factors), [])
    assert "pymscclpp.py:4" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["simulated", "attached"])
def test_engines_without_a_source(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"engine=sglang engine\.python="):
        perform(settings_of(tmp_path, engine={"kind": kind}), [])
