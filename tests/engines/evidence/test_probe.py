"""The environment probe, run by this interpreter in place of the engine's."""

import sys
from pathlib import Path

import pytest

from runner.engines.evidence.probe import run_probe
from runner.errors import UserError


def test_what_can_be_imported_and_why_not(tmp_path: Path) -> None:
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package/__init__.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "torch.py").write_text(
        "__version__ = '9.9+cpu'\nclass version: cuda = None\nclass cuda:\n    is_available = staticmethod(lambda: 1 / 0)\n"
    )
    found = run_probe(sys.executable, {"PYTHONPATH": str(tmp_path)}, modules=("json", "broken_package", "no_such_module", "ends"))
    assert found["importable"] == {"json": True, "broken_package": False, "no_such_module": False, "ends": False}
    assert "nothing_of_this_name" in found["import_errors"]["broken_package"]
    assert found["torch"] == "9.9+cpu"
    assert (found["gpus"], found["capability"]) == (0, None)


def test_devices_are_described_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "__version__ = '9.9+cu130'\nclass version: cuda = '13.0'\nclass cuda:\n"
        "    is_available = staticmethod(lambda: True)\n    device_count = staticmethod(lambda: 8)\n"
        "    get_device_capability = staticmethod(lambda i: (12, 0))\n    get_device_name = staticmethod(lambda i: f'GPU {i}')\n"
    )
    found = run_probe(sys.executable, {"PYTHONPATH": str(tmp_path)}, modules=())
    assert (found["gpus"], found["capability"], found["gpu_names"][7]) == (8, [12, 0], "GPU 7")


def test_modules_that_print_do_not_spoil_the_answer(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text("print('{\"importable\": 1}', end='')\n")
    assert run_probe(sys.executable, {"PYTHONPATH": str(tmp_path)}, modules=("noisy",))["importable"] == {"noisy": True}


def test_a_probe_that_dies_or_hangs_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(60)\n")
    env = {"PYTHONPATH": str(tmp_path)}
    assert list(run_probe(sys.executable, env, modules=("dies",))) == ["error"]
    assert list(run_probe(sys.executable, env, modules=("hangs",), timeout_s=0.7)) == ["error"]


def test_no_interpreter_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"engine\.python"):
        run_probe(str(tmp_path / "no/python"))
