"""One whole night of the simulated engine, by the command line: an arm has become slower, is launched again, exit code 3."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from runner.actions.history import History, save_history
from runner.records.night import Night
from runner.records.paths import RootPaths

EXPERIMENT = """\
# @package _global_
defaults: [nightly, _self_]
study: {experiment: nightly}
include: [{mscclpp: "on"}]
baseline: {mscclpp: "off"}
phases: [decode_c1]
engine: {simulation: {effects: {"mscclpp=on": {tpot_p50_ms: -40}}}}
protocol: {phase_scale: 0.03, warmup_output: 8, fingerprint_prompts: 1}
schedule: {blocks_per_night: 1}
"""
# What this configuration takes in ms, without the effect: the cost model's own times at engine.simulation.time_scale.
USUAL = {"baseline": 2.99, "mscclpp=on": 2.17}


def test_an_injected_regression_is_launched_again_and_ends_with_three(tmp_path: Path) -> None:
    root = RootPaths(tmp_path / "mlruns")
    rng = np.random.default_rng(20261)
    past = tuple(
        Night(
            study=f"night-{index}",
            at=float(index),
            identity={"experiment": "nightly", "driver": "none"},
            values={f"{arm}|decode_c1|tpot_p50_ms": tuple(ms * np.exp(rng.normal(0, 0.01, 3))) for arm, ms in USUAL.items()},
            outcome="quiet",
        )
        for index in range(8)
    )
    save_history(root, History(node="rtxpro6000_x8", simulated=True, nights=past))
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "slower.yaml").write_text(EXPERIMENT)
    words = ["+experiment=slower", "engine=simulated", "dry_run=true", "execution.executor=inline", "execution.quiet=true"]
    words += [f"execution.lock_dir={tmp_path}/lock", f"tracking.root={root.root}", "tracking.enabled=false"]
    done = subprocess.run(
        [sys.executable, "-m", "runner", "--config-dir", str(tmp_path / "conf"), *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "launched again before anyone is told" in done.stderr + done.stdout
    (study,) = root.studies.glob("nightly-*")
    report = json.loads((study / "nightly.json").read_text())
    assert report["simulated"] and report["outcome"] == "regression" and "mscclpp=on" in report["suspects"]
    assert report["first_look"] == "regression" and "mscclpp=on" in report["relaunched"]
    shift = next(shift for shift in report["shifts"] if shift["quantity"]["arm"] == "mscclpp=on")
    assert shift["launches"] == 2 and shift["change_pct"] < -5
    assert report["changed"], "the engine is another one than in the made-up history"
    assert (study / "nightly.md").read_text().startswith("# SIMULATED Nightly sweep: regression")
    assert not (root.nodes / "rtxpro6000_x8").exists(), "a simulated night reached the real node's folder"
