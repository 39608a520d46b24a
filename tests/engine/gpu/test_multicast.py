"""An unknown place that can make an NVLink multicast object stops a visit; known ones come with what keeps them shut."""

import json
import runpy
from pathlib import Path

import pytest

MAIN = runpy.run_path(str(Path(__file__).with_name("multicast.py")))["main"]


def site(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_known_places_are_told_with_their_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = site(
        tmp_path,
        {
            "flashinfer/comm/mnnvl.py": b"h = cuda.cuMulticastCreate(p)\n",
            "sglang/srt/entrypoints/engine.py": b'os.environ["NCCL_NVLS_ENABLE"] = "0"\n',
            "sglang/srt/layers/linear.py": b"with use_symmetric_memory(group):\n",
            "sglang/srt/layers/comm.py": b"cuda.cuMulticastGetGranularity(p)\n",
            "sglang/test/x.py": b"cuMulticastCreate()\n",
            "sgl_kernel/sm90/common_ops.abi3.so": b"\x7fELF SM90_TMA_LOAD_MULTICAST",
        },
    )
    assert MAIN([str(known)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {place for places in told["known"].values() for place in places} == {
        "flashinfer/comm/mnnvl.py",
        "sglang/srt/entrypoints/engine.py",
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sglang/srt/distributed/new_communicator.py", b"import torch.distributed._symmetric_memory as symm_mem\n"),
        ("sgl_kernel/sm90/common_ops.abi3.so", b"\x7fELF .. cuMulticastCreate .."),
        ("mscclpp/_mscclpp.cpython-312-x86_64-linux-gnu.so", b"\x7fELF .. NvlsConnection .."),
    ],
)
def test_an_unknown_place_is_an_error(name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert MAIN([str(site(tmp_path, {name: content}))]) == 1
    assert json.loads(capsys.readouterr().out)["unknown"][0]["place"] == name
