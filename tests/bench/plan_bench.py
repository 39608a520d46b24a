"""How long a plan of 10,000 raw cells takes: `python -m tests.bench.plan_bench`. A measurement, no assertion of time."""

import time

from hydra import compose, initialize_config_dir

from runner.config import config_folder, settings_from
from runner.planning.build import build_plan
from runner.planning.show import plan_json

GRID = {
    "mscclpp": ["off", "on"],
    "single_batch_overlap": ["off", "on"],
    "two_batch_overlap": ["off", "on"],
    "sm120_fusion": ["off", "patched"],
    "mscclpp_max_bytes": ["256KB", "512KB", "1MB", "2MB", "4MB"],
    "chunked_prefill_size": ["2048", "4096", "8192", "16384", "-1"],
    "nccl": ["default", "ring", "tree", "ll", "ll128"],
    "numa_bind": ["off", "auto"],
    "moe_runner_backend": ["flashinfer_cutlass", "cutlass", "triton"],
}


def main() -> None:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = compose(
            "config", overrides=["+experiment=overlap_grid", *(f"+grid.{n}={v}" for n, v in GRID.items() if n not in _WRITTEN)]
        )
    settings = settings_from(config)
    settings = settings.model_copy(update={"grid": {name: tuple(levels) for name, levels in GRID.items()}})
    for version in ("0.5.9", "0.5.23"):
        start = time.perf_counter()
        plan = build_plan(settings, engine_kind="simulated", engine_version=version)
        planned = time.perf_counter()
        plan_json(plan)
        print(
            f"{version}: {plan.raw_cells} raw cells, {len(plan.cells)} legal, {len(plan.arms)} arms: "
            f"planned in {planned - start:.2f} s, JSON in {time.perf_counter() - planned:.2f} s"
        )


_WRITTEN = ("mscclpp", "single_batch_overlap", "two_batch_overlap", "sm120_fusion", "mscclpp_max_bytes")

if __name__ == "__main__":
    main()
