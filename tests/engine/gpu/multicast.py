"""Can an unpacked engine make an NVLink multicast object? Reads sources and binaries, imports nothing, needs no GPU.

    python tests/engine/gpu/multicast.py SITE_FOLDER [TORCH_FOLDER ...]

A multicast object on a shared host can put its GPUs out of service, so before an engine version is run there, every place that can make one
must be known, with what keeps it shut. Prints one JSON object; exit code 1 when a place is not in the list below."""

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Making or joining such an object, in Python and in binaries. A granularity query or a TMA multicast inside one GPU makes none.
SOURCE = re.compile(
    r"cuMulticast(?:Create|AddDevice|BindMem|BindAddr)|distributed\._symmetric_memory|symm_mem\.(?:empty|rendezvous)|multimem_|NCCL_NVLS_ENABLE|nvshmem\.init"
)
BINARY = (b"cuMulticastCreate", b"NvlsConnection", b"ncclMemAlloc")
SKIPPED = frozenset({"test", "tests", "__pycache__", "multimodal_gen", "benchmark"})


@dataclass(frozen=True)
class Place:
    """`pattern`: of the path below the package's parent. `shut`: what keeps it from making a multicast object in our arms."""

    pattern: str
    shut: str


NOT_STARTED = "no arm asks for it: "
KNOWN = (
    Place(r"sglang/srt/entrypoints/engine\.py", "NCCL_NVLS_ENABLE=0 is set by the node; SGLang keeps a value that is set unless "
          "--enable-nccl-nvls or --enable-symm-mem is given"),
    Place(r"sglang/srt/distributed/device_communicators/pynccl_allocator\.py", NOT_STARTED + "--enable-symm-mem"),
    Place(r"sglang/srt/distributed/device_communicators/torch_symm_mem\.py", NOT_STARTED + "--enable-torch-symm-mem"),
    Place(r"sglang/srt/distributed/device_communicators/(pymscclpp|mscclpp)\w*\.py", "CUDA IPC memory only up to 0.5.13; TORCH_SYMM_MEM_DISABLE_MULTICAST=1"),
    Place(r"flashinfer/comm/torch_symmetric_memory\.py", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1 (fusion's workspace)"),
    Place(r"flashinfer/comm/mnnvl\.py", NOT_STARTED + "fusion backend mnnvl, the mnnvl all-to-all"),
    Place(r"flashinfer/comm/(mixed_comm|nvshmem\w*|trtllm_mnnvl_ar|trtllm_\w*alltoall|dcp_alltoall)\.py", NOT_STARTED + "mnnvl, NVSHMEM, all-to-all"),
    Place(r"flashinfer/.*", NOT_STARTED + "FlashInfer kernels that take such memory; its allocators are named above"),
    Place(r"(triton_kernels/distributed|torchao/prototype/moe_training/.*)\.py", NOT_STARTED + "expert-parallel training and its exchange"),
    Place(r"torch/lib/lib(torch_cuda|torch_nvshmem|c10_cuda)\.so", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1; used by torch symmetric memory only"),
    Place(r"torch/(distributed|_inductor|testing|utils|_C|include)/.*", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1; torch symmetric memory, on request only"),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    place: str
    line: int
    what: str
    shut: str


def places(root: Path, skip: frozenset[str] = SKIPPED) -> list[Found]:
    """Every hit below `root`, with the known reason why it stays shut ("" when there is none)."""
    found = []
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if skip & set(path.parts) or not path.is_file():
            continue
        if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".h", ".hpp"):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if hit := SOURCE.search(line):
                    found.append(Found(name, number, hit.group(0), why(name)))
        elif ".so" in path.suffixes:
            content = path.read_bytes()
            found += [Found(name, 0, word.decode(), why(name)) for word in BINARY if word in content]
    return found


def why(name: str) -> str:
    return next((place.shut for place in KNOWN if re.fullmatch(place.pattern, name)), "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", type=Path, help="folders that hold packages (the archive's site; torch's parent)")
    found = [hit for root in parser.parse_args(arguments).roots for hit in places(root)]
    open_ones = [hit for hit in found if not hit.shut]
    grouped: dict[str, dict[str, list[str]]] = {}
    for hit in found:
        grouped.setdefault(hit.shut or "NOT KNOWN", {}).setdefault(hit.place, []).append(f"{hit.line} {hit.what}")
    print(
        json.dumps(
            {"unknown": [asdict(hit) for hit in open_ones], "known": {key: value for key, value in grouped.items() if key != "NOT KNOWN"}},
            indent=1,
        )
    )
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
