"""Orders for the simulated engine, and an owner that ends what it starts."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.engines.base import LaunchOrder
from runner.spec.engine import EngineSpec, Simulation
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec

PCIE_NODE = NodeSpec(name="pcie8", gpus=8, gpu_model="RTX PRO 6000 Blackwell", capability=120, memory_gb=96, link="pcie", link_gb_s=63)
H200_NODE = NodeSpec(name="h200x2", gpus=2, gpu_model="NVIDIA H200", capability=90, memory_gb=141, link="nvlink", link_gb_s=450)
GLM5 = ModelSpec(
    name="glm5",
    architecture="GlmMoeDsaForCausalLM",
    hidden_size=6144,
    num_layers=78,
    active_parameters_b=40,
    weight_gb=440,
    weight_bits=4.5,
    experts=256,
    shared_experts=1,
    vocab_size=150000,
)
MOE = ModelSpec(
    name="moe-small",
    architecture="Qwen3MoeForCausalLM",
    hidden_size=2048,
    num_layers=24,
    active_parameters_b=1.5,
    weight_gb=28,
    experts=128,
    vocab_size=4096,
)
BASE: dict[str, Any] = {"tp-size": 8, "disable-shared-experts-fusion": True}


def order_of(
    folder: Path,
    *,
    version: str = "0.5.9",
    options: Mapping[str, Any] | None = None,
    node: NodeSpec = PCIE_NODE,
    model: ModelSpec = GLM5,
    base: Mapping[str, Any] = BASE,
    simulation: Mapping[str, Any] | None = None,
    **more: Any,
) -> LaunchOrder:
    """An order that loads at once and runs at a tenth of the token times, with `more` fields of LaunchOrder."""
    settings = {"load_s": 0.05, "time_scale": 0.1, "launch_noise_pct": 0.0, "request_noise_pct": 0.0, **(simulation or {})}
    return LaunchOrder(
        study="s",
        launch="l",
        arm=more.pop("arm", "base"),
        levels=more.pop("levels", {}),
        options={**base, **(options or {})},
        folder=str(folder),
        engine=EngineSpec(
            kind="simulated", version=version, simulation=Simulation(**settings), port_range=more.pop("port_range", (21000, 21999))
        ),
        model=model,
        node=node,
        **more,
    )


class Process:
    """One process in a session of its own; its tree is found by session, group and parent."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def tree(self) -> list[int]:
        marker = f"TEST_TREE={self.pid_marker}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError):
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" and marker in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(entry.name))
        return sorted(found)

    pid_marker = ""

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.poll()

    def wait_gone(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while self.tree():
            if time.monotonic() > end:
                return False
            self._popen.poll()
            time.sleep(0.01)
        self._popen.poll()
        return True


class PlainOwner:
    """Spawns and ends; every process carries a marker in its environment, so that double forks are found too."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def spawn(self, argv: list[str], env: Mapping[str, str], log: Path, cwd: Path | None = None) -> Process:
        marker = f"{os.getpid()}-{time.monotonic_ns()}"
        with open(log, "ab") as out:
            popen = subprocess.Popen(
                argv,
                env={**env, "TEST_TREE": marker},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                start_new_session=True,
            )
        process = Process(popen)
        process.pid_marker = marker
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait_gone(5.0)
