"""`action=doctor [json=true]`: is this node fit to measure? A line a check, each with its remedy. Exit code 3 when one fails."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.actions.checks.clocks import check_clocks
from runner.actions.checks.facts import GpuFacts, bus_facts, gpu_facts, host_facts, installed
from runner.actions.checks.finding import Finding, fail
from runner.actions.checks.gpu import check_driver, check_gpus, check_occupied
from runner.actions.checks.host import check_host, check_ports
from runner.actions.checks.leftovers import check_leftovers, check_lock, is_locked
from runner.actions.checks.link import check_bus, check_pcie, check_peer_access, check_topology
from runner.actions.checks.software import check_client, check_engine, check_model, check_ray, check_store
from runner.actions.ground import root_of
from runner.config import Settings
from runner.records.schema import EngineIdentity
from runner.spec.node import NodeSpec

Check = Callable[[], list[Finding]]
MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def perform(settings: Settings, overrides: list[str]) -> int:
    findings = examine(settings)
    if settings.json_output:
        counted = {state: sum(each.state == state for each in findings) for state in MARKS}
        print(
            json.dumps({"schema": 1, "node": settings.node.name, **counted, "checks": [each.model_dump(mode="json") for each in findings]})
        )
    else:
        print(doctor_text(findings, sys.stdout.isatty()))
    return 3 if any(each.state == "fail" for each in findings) else 0


def examine(settings: Settings) -> list[Finding]:
    """Every check, in the order in which a person would fix things. A check that breaks is a fail of its own, never the end."""
    gpus = gpu_facts()
    kind = engine_kind(settings, bool(gpus.devices))
    real = kind in ("sglang", "container")
    checks: list[tuple[str, Check]] = [
        ("foreign processes", lambda: check_occupied(gpus)),
        ("host", lambda: check_host(host_facts(_folders(settings)), real)),
        ("ports", lambda: _ports(settings)),
        ("engine", lambda: _engine(settings, kind)),
        ("model", lambda: check_model(settings.model.path)),
        ("Ray", lambda: _ray(settings)),
        ("MLflow store", lambda: _store(settings)),
        ("node lock", lambda: _lock(settings)),
        ("leftovers", lambda: _leftovers(settings)),
        ("load client", _client),
    ]
    return hardware(gpus, settings.node, kind) + _looked_at(checks)


def hardware(gpus: GpuFacts, node: NodeSpec, kind: str) -> list[Finding]:
    """The checks of the GPUs and of how they are joined."""
    return _looked_at(
        [
            ("gpus", lambda: check_gpus(gpus, node, kind)),
            ("driver", lambda: check_driver(gpus)),
            ("topology", lambda: check_topology(gpus, node)),
            ("PCIe", lambda: check_pcie(gpus, node)),
            ("P2P", lambda: check_peer_access(gpus)),
            ("IOMMU", lambda: check_bus(bus_facts(gpus.devices), gpus)),
            ("clocks", lambda: check_clocks(gpus)),
        ]
    )


def _looked_at(checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check()
        except Exception as error:  # noqa: BLE001  one broken look must not hide the others
            found.append(fail(name, f"the check itself broke: {type(error).__name__}: {error}", "please report this"))
    return found


def engine_kind(settings: Settings, gpus: bool) -> str:
    """What engine=auto means here. With GPUs it is sglang: whether its interpreter has one is a check of its own."""
    if settings.engine.kind != "auto":
        return settings.engine.kind
    return "sglang" if gpus else "simulated"


def doctor_text(findings: list[Finding], colours: bool) -> str:
    paint = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"} if colours else dict.fromkeys(MARKS, "")
    end = "\x1b[0m" if colours else ""
    lines = []
    for each in findings:
        lines.append(f"{paint[each.state]}{MARKS[each.state]}{end}  {each.check}: {each.text}")
        if each.remedy:
            lines.append(f"        -> {each.remedy}")
    counts = {state: sum(each.state == state for each in findings) for state in MARKS}
    lines.append(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")
    return "\n".join(lines)


def _folders(settings: Settings) -> dict[str, Path]:
    from runner.engines.environment import cache_home

    return {"results": root_of(settings).root, "compile caches": cache_home(settings.engine.cache_root), "shared memory": Path("/dev/shm")}  # noqa: S108


def _ports(settings: Settings) -> list[Finding]:
    from runner.engines.ports import ephemeral_range, is_free

    return check_ports(settings.engine.port_range, ephemeral_range(), is_free)


def _engine(settings: Settings, kind: str) -> list[Finding]:
    from runner.engines.registry import choose_engine
    from runner.planning.pins import KNOWN

    def identify() -> EngineIdentity:
        chosen: object = kind
        spec = settings.engine.model_copy(update={"kind": chosen})
        return choose_engine(spec, settings.node).identify()

    return check_engine(settings.engine, kind, identify, KNOWN)


def _ray(settings: Settings) -> list[Finding]:
    from runner.execution.ray_executor import probe_address

    return check_ray(installed("ray"), settings.execution, os.environ, probe_address)


def _store(settings: Settings) -> list[Finding]:
    def reach(uri: str) -> str | None:
        import requests

        try:
            return None if requests.get(f"{uri.rstrip('/')}/health", timeout=3).ok else "its health page is not there"
        except requests.RequestException as error:
            return type(error).__name__

    return check_store(root_of(settings).database, settings.tracking, installed("mlflow"), reach)


def _lock_folder(settings: Settings) -> Path:
    from runner.engines.locks import default_lock_folder

    return Path(settings.execution.lock_dir) if settings.execution.lock_dir else default_lock_folder()


def _lock(settings: Settings) -> list[Finding]:
    from runner.engines.locks import NodeLock

    lock = NodeLock(_lock_folder(settings))
    words = lock.holder()
    holder = (
        f"study {words.get('study') or 'unnamed'}, pid {words.get('pid')}, user {words.get('user')}" if words else "by nobody who says so"
    )
    return check_lock(is_locked(lock.path), holder, str(lock.folder))


def _leftovers(settings: Settings) -> list[Finding]:
    from runner.engines.clean import left_by
    from runner.engines.ledger import books

    alive: list[str] = []
    left: dict[str, list[str]] = {}
    for book in books(_lock_folder(settings)):
        if book.owner.alive:
            alive.append(book.owner.study)
        elif processes := left_by(book):
            left[book.owner.study] = [f"pid {seen.pid} ({seen.name})" for seen in processes]
    return check_leftovers(list(dict.fromkeys(alive)), left)


def _client() -> list[Finding]:
    from runner.loadgen.calibrate import calibrate

    def measure() -> tuple[float, bool, str, float]:
        result = calibrate(streams=(16, 128), seconds=0.8)
        return result.ceiling_chunks_s, result.fit, result.note, result.levels[-1].ttft_error_p50_ms

    return check_client(measure)
