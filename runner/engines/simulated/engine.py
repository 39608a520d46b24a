"""The simulated engine: the same contract as the real one, with a process of ours in its place."""

import hashlib
import sys
from pathlib import Path

from runner.engines import ports
from runner.engines.base import LaunchOrder, Owner
from runner.engines.environment import base_environment
from runner.engines.httpserver import HttpServer
from runner.engines.simulated.cost import unknown_overrides
from runner.engines.simulated.faults import check
from runner.engines.simulated.launch import DEFAULT_VERSION
from runner.errors import UserError
from runner.records.files import write_json
from runner.records.paths import LaunchPaths
from runner.records.schema import Command, EngineIdentity
from runner.records.secrets import scrub_mapping
from runner.spec.engine import EngineSpec

MODULE = "runner.engines.simulated"
ROOT = Path(__file__).resolve().parents[3]


class SimulatedEngine:
    """Implements `base.Engine`. `spec.version` says which SGLang it plays (default 0.5.9). Raises UserError for a fault or a
    cost key that does not exist."""

    kind = "simulated"

    def __init__(self, spec: EngineSpec) -> None:
        wrong = check(spec.simulation.faults) or unknown_overrides(spec.simulation.compute)
        if wrong:
            raise UserError(wrong)
        self.spec = spec
        self.version = spec.version or DEFAULT_VERSION

    def identify(self) -> EngineIdentity:
        """The played version; `build` is a hash over the simulation's own source."""
        digest = hashlib.sha256(self.version.encode())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return EngineIdentity(
            kind="simulated", version=self.version, build=f"simulated-{digest.hexdigest()[:12]}", simulated=True, python=sys.executable
        )

    def start(self, order: LaunchOrder, owner: Owner) -> HttpServer:
        """Writes the order to its folder, starts the process and returns. Raises UserError when no port of the range is free."""
        paths = LaunchPaths(Path(order.folder))
        paths.folder.mkdir(parents=True, exist_ok=True)
        spec = order.engine.model_copy(update={"version": self.version})
        write_json(paths.order, order.model_copy(update={"engine": spec}).model_dump(mode="json", by_alias=True))
        port = ports.pick_ports(order.engine.port_range)[0]
        argv = [sys.executable, "-m", MODULE, "--order", str(paths.order), "--port", str(port)]
        ours = {**order.node.env, **order.engine.env, **order.env}
        surroundings = base_environment() | ours
        path = [str(ROOT), *filter(None, [surroundings.get("PYTHONPATH")])]
        surroundings["PYTHONPATH"] = ":".join(path)
        owned = owner.spawn(argv, surroundings, paths.server_log, cwd=paths.folder)
        command = Command(
            argv=tuple(argv), env=scrub_mapping(ours), cwd=order.folder, overlay=order.overlay, patches=dict.fromkeys(order.patches, "")
        )
        return HttpServer(owned, port, paths.server_log, command, order.engine.deadlines)
