"""Times all-reduces; runs in the engine's interpreter, one process a rank. Only the standard library and torch; never the runner.

    python all_reduce_script.py ORDER RANK

ORDER is a JSON file: {backend: nccl|gloo, ranks, store: file, out: folder, sizes: [bytes], rounds, budget_s, calls, graph_calls}.
Every rank writes OUT/<rank>.json: {torch, library, device, algorithms: {name: {calls, points: {bytes: [us, one a round]}}},
notes: {name: why it was left out}}. Times are microseconds of one all-reduce, as this rank saw it; whoever reads takes the slowest.

nccl:       back-to-back calls between two CUDA events: what an engine pays outside CUDA graphs (kernel or launch, whichever is
            longer).
nccl_graph: `graph_calls` all-reduces captured in one CUDA graph, event to event, over their number.
gloo:       back-to-back calls on a CPU, by the monotonic clock.
"""

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# NVLink multicast can put a shared host's GPUs out of service; set before torch or NCCL look at their environment.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["NCCL_NVLS_ENABLE"] = "0"

WARM_UP = 3


def main(order_file: str, rank: int) -> None:
    with open(order_file) as file:
        order = json.load(file)
    import torch  # type: ignore[import-not-found]
    import torch.distributed as dist  # type: ignore[import-not-found]

    on_gpu = order["backend"] == "nccl"
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        order["backend"],
        init_method="file://" + order["store"],
        rank=rank,
        world_size=order["ranks"],
        timeout=datetime.timedelta(seconds=order["timeout_s"]),
        **({"device_id": torch.device("cuda", rank)} if on_gpu else {}),
    )
    check_sum(torch, dist, order["ranks"], on_gpu)
    kept: list[Any] = []  # graphs and what they reduce, alive until the process ends
    answer: dict[str, Any] = {"torch": torch.__version__, "library": None, "device": "cpu", "algorithms": {}, "notes": {}}
    if on_gpu:
        answer["library"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        answer["device"] = torch.cuda.get_device_name(rank)
    ways = {"nccl": gpu_eager, "nccl_graph": gpu_graph} if on_gpu else {"gloo": cpu_eager}
    for name, way in ways.items():
        calls = order["graph_calls"] if name == "nccl_graph" else order["calls"]
        points: dict[int, list[float]] = {}
        try:
            for size in order["sizes"]:
                points[size] = way(torch, dist, size, order, calls, kept)
        except RuntimeError as error:  # a way that this torch does not offer leaves the others standing
            if name != "nccl_graph":
                raise
            answer["notes"][name] = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        if points:
            answer["algorithms"][name] = {"calls": calls, "points": points}
        dist.barrier()
    path = order["out"] + f"/{rank}.json"
    with open(path + ".tmp", "w") as file:
        json.dump(answer, file)
    os.replace(path + ".tmp", path)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # no teardown: a captured graph still holds NCCL's buffers


def check_sum(torch: Any, dist: Any, ranks: int, on_gpu: bool) -> None:
    """A collective that does not add up is not worth timing."""
    ones = torch.ones(1024, device="cuda" if on_gpu else "cpu")
    dist.all_reduce(ones)
    if float(ones.sum()) != 1024.0 * ranks:
        raise SystemExit(f"all-reduce of ones over {ranks} ranks gave {float(ones[0])} a value")


def agreed(torch: Any, dist: Any, value: float, on_gpu: bool) -> float:
    """The largest of all ranks' values: every rank then makes the same number of calls."""
    held = torch.tensor([float(value)], device="cuda" if on_gpu else "cpu")
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    return float(held[0])


def fitting(torch: Any, dist: Any, once: Callable[[], Any], order: dict[str, Any], calls: int, on_gpu: bool) -> int:
    """Calls a round, so that all rounds of one size stay near budget_s; at least one."""
    for _ in range(WARM_UP):
        once()
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    once()
    if on_gpu:
        torch.cuda.synchronize()
    took = agreed(torch, dist, time.perf_counter() - start, on_gpu)
    return max(1, min(calls, int(order["budget_s"] / order["rounds"] / max(took, 1e-7))))


def cpu_eager(torch: Any, dist: Any, size: int, order: dict[str, Any], calls: int, kept: list[Any]) -> list[float]:
    data = torch.zeros(size // 4, dtype=torch.float32)

    def once() -> None:
        dist.all_reduce(data)

    count = fitting(torch, dist, once, order, calls, False)
    times = []
    for _ in range(order["rounds"]):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            once()
        times.append((time.perf_counter() - start) / count * 1e6)
    return times


def timed(torch: Any, dist: Any, work: Callable[[], Any], rounds: int, calls: int) -> list[float]:
    """Microseconds of one of `calls` all-reduces that `work` queues, event to event, a round."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(rounds):
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls * 1e3)
    return times


def gpu_eager(torch: Any, dist: Any, size: int, order: dict[str, Any], calls: int, kept: list[Any]) -> list[float]:
    data = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")

    def once() -> None:
        dist.all_reduce(data)

    count = fitting(torch, dist, once, order, calls, True)

    def work() -> None:
        for _ in range(count):
            once()

    work()
    return timed(torch, dist, work, order["rounds"], count)


def gpu_graph(torch: Any, dist: Any, size: int, order: dict[str, Any], calls: int, kept: list[Any]) -> list[float]:
    data = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
    count = fitting(torch, dist, lambda: dist.all_reduce(data), order, calls, True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            dist.all_reduce(data)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # thread_local: NCCL's watchdog thread may look at events while this thread captures.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            dist.all_reduce(data)
    graph.replay()
    times = timed(torch, dist, graph.replay, order["rounds"], count)
    kept.append((graph, data))
    return times


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
