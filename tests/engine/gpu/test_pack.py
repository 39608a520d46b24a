"""What goes into an engine's archive, and which versions there are."""

import runpy
from pathlib import Path

import pytest

PACK = runpy.run_path(str(Path(__file__).with_name("pack.py")))
KERNELS = "sglang_kernel-0.4.3-cp310-abi3-manylinux2014_x86_64.whl"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("sgl_kernel/sm90/common_ops.abi3.so", True),
        ("sgl_kernel/allreduce.py", True),
        ("sgl_kernel/sm100/common_ops.abi3.so", False),
        ("sgl_kernel/flash_ops.abi3.so", False),
        ("_mscclpp.cpython-310-x86_64-linux-gnu.so", False),
        ("lib/mscclpp.so", False),
        ("lib64/cmake/x.cmake", False),
    ],
)
def test_kernels_of_other_machines_and_multicast_libraries_stay_out(name: str, kept: bool) -> None:
    assert PACK["keep_engine"](name, KERNELS) is kept
    assert PACK["keep_engine"](name, "other-1.0-py3-none-any.whl")


def test_every_version_pins_its_engine_and_kernels() -> None:
    assert PACK["DEFAULT_ENGINE"] in PACK["engine_versions"]()
    for version in PACK["engine_versions"]():
        pins = dict(
            line.split("==") for line in (PACK["HERE"] / f"engine-{version}-requirements.txt").read_text().splitlines() if "==" in line
        )
        assert pins["sglang"] == version
        assert {"sglang-kernel", "flashinfer-python", "transformers"} <= set(pins)
