"""A real SGLang server: a process in the interpreter that `engine.python` names. The runner itself never imports it."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.engines import ports
from runner.engines.base import LaunchOrder, Owner, argv_of
from runner.engines.environment import base_environment, cache_environment, cache_folder, python_path
from runner.engines.gpus import Gpus
from runner.engines.httpserver import HttpServer
from runner.engines.identity import check_interpreter, identify_sglang
from runner.engines.modelfolder import model_folder
from runner.records.paths import LaunchPaths
from runner.records.schema import Command, EngineIdentity
from runner.records.secrets import scrub_argv, scrub_mapping
from runner.spec.engine import Deadlines, EngineSpec

ATTENTION_DP_PORTS = tuple(range(233, 240))
"""With data-parallel attention SGLang opens TCP ports at these offsets from its HTTP port."""

MODULE = "sglang.launch_server"


class SglangEngine:
    """Implements `base.Engine`. `spec.python` null: this interpreter."""

    kind = "sglang"

    def __init__(self, spec: EngineSpec, gpus: Gpus | None = None) -> None:
        self.spec = spec
        self.python = spec.python or sys.executable
        self._gpus = gpus
        self._identity: EngineIdentity | None = None

    def identify(self) -> EngineIdentity:
        """Version and build; asked once. Raises UserError naming the interpreter."""
        if self._identity is None:
            env = base_environment() | python_path(None, self.spec.extra_python_path)
            self._identity = identify_sglang(self.python, env, self.spec.version)
        return self._identity

    def start(self, order: LaunchOrder, owner: Owner) -> HttpServer:
        """Checks the model, the GPUs and the port, starts the process and returns. Raises UserError, NodeBusy (a foreign process on
        the GPUs) or LaunchFailed."""
        made = prepare(order, self.spec, self.identify().build, self._gpus)
        argv = [check_interpreter(self.python), "-m", MODULE, *argv_of(made.options)]
        ours = launch_environment(order, self.spec, cache_environment(made.caches))
        log = LaunchPaths(Path(order.folder)).server_log
        owned = owner.spawn(argv, base_environment() | ours, log, cwd=Path(order.folder))
        return HttpServer(
            owned,
            made.port,
            log,
            command_of(argv, ours, order),
            self.spec.deadlines,
            caches=(made.caches,),
            memory_free=memory_waiter(made.gpus),
        )


@dataclass(frozen=True)
class Prepared:
    """What a start has before its command line: `model` is the model's folder here, `caches` the compile caches of this build and
    overlay, `port` the HTTP port, `options` those of the arm with what every launch gets."""

    model: Path
    gpus: Gpus
    caches: Path
    port: int
    options: dict[str, Any]


def prepare(order: LaunchOrder, spec: EngineSpec, build: str, gpus: Gpus | None, model_path: str | None = None) -> Prepared:
    """Checks the model, the GPUs and the port. `model_path`: where the server sees the model, when not in its own place. Raises
    UserError, NodeBusy (a foreign process on the GPUs) or LaunchFailed."""
    model = model_folder(order.model, weights_needed=needs_weights(order)).path
    devices = gpus if gpus is not None else Gpus.visible()
    devices.demand_free(own_pids=(), timeout=spec.deadlines.memory_free_s)
    port, options = choose_ports(order, spec)
    return Prepared(
        model=model,
        gpus=devices,
        caches=cache_folder(spec.cache_root, build, order.overlay),
        port=port,
        options=complete_options(options, order, model_path or str(model), port, spec.deadlines),
    )


def memory_waiter(gpus: Gpus) -> Callable[[float], bool] | None:
    """What a stop waits for; None where there is no GPU."""
    if not gpus.present:
        return None
    return lambda timeout: gpus.wait_free(gpus.uuids, (), timeout)


def needs_weights(order: LaunchOrder) -> bool:
    """False with random weights, whether the arm or the model asks for them."""
    return str(order.options.get("load-format") or order.model.load_format or "auto") != "dummy"


def choose_ports(order: LaunchOrder, spec: EngineSpec) -> tuple[int, dict[str, Any]]:
    """The HTTP port, and the options with every port of ours in them. A port that the user names must be free (UserError)."""
    options = dict(order.options)
    asked = options.pop("port", None)
    options.pop("host", None)
    dp = bool(options.get("enable-dp-attention")) or int(options.get("attn-dp-size") or 1) > 1
    chosen = ports.pick_ports(spec.port_range, 2, ATTENTION_DP_PORTS if dp else ())
    if asked is not None:
        ports.demand_free(int(asked))
    options.setdefault("nccl-port", chosen[1])
    return (int(asked) if asked is not None else chosen[0]), options


def complete_options(options: Mapping[str, Any], order: LaunchOrder, model_path: str, port: int, deadlines: Deadlines) -> dict[str, Any]:
    """Options of the arm with what every launch gets: model, host, port, load format, and a watchdog that does not end a slow
    start before our own deadlines do."""
    longest = max(deadlines.weights_s, deadlines.compile_s, deadlines.graphs_s, deadlines.silent_s)
    first = {"model-path": model_path, "host": ports.LOOPBACK, "port": port}
    if order.model.load_format is not None:
        first["load-format"] = order.model.load_format
    completed = {**first, **{name: value for name, value in options.items() if name != "model-path"}}
    completed.setdefault("watchdog-timeout", int(longest))
    if order.ranks is not None:
        completed |= order.ranks.options
    return completed


def launch_environment(order: LaunchOrder, spec: EngineSpec, caches: Mapping[str, str]) -> dict[str, str]:
    """What the runner sets, the arm last. Nothing is downloaded, no proxy answers for the server, a health check costs no token,
    and process titles leave the environment readable (by which a server's children are known)."""
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "SGLANG_WARMUP_TIMEOUT": str(int(spec.deadlines.warmup_s)),
    }
    path = python_path(order.overlay, spec.extra_python_path)
    return {**fixed, **caches, **path, **order.node.env, **order.model.env, **spec.env, **order.env}


def command_of(argv: list[str], env: Mapping[str, str], order: LaunchOrder, patches: Mapping[str, str] | None = None) -> Command:
    """The command for the record, without secrets."""
    return Command(
        argv=scrub_argv(argv),
        env={name: str(value) for name, value in scrub_mapping(env).items()},
        cwd=order.folder,
        overlay=order.overlay,
        patches=dict(patches or dict.fromkeys(order.patches, "")),
    )
