"""What must not change when a study is resumed: one hash a subject, so that the message can name which one did."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config import Settings, config_folder
from runner.planning.treatments import selected_phases
from runner.records.plan import Arm
from runner.records.schema import EngineIdentity

# What a person may change between two visits to one study.
_FREE_PROTOCOL = {"gpu_minutes", "ask_above_gpu_hours", "retries", "required"}
# Where the engine lies and how long one waits for it does not change what is measured.
_FREE_ENGINE = {"python", "deadlines", "cache_root", "port_range", "extra_python_path", "container_runtime", "version", "kind"}


def plan_identity(
    settings: Settings, engine_kind: str, engine_version: str, identity: EngineIdentity | None, arms: Sequence[Arm]
) -> dict[str, str]:
    """Keys: engine, version, build (where known), engine_settings, patches, model, workload, protocol, node, grid."""
    patches = sorted({patch for arm in arms for patch in arm.patches})
    phases = {name: phase.model_dump(mode="json") for name, phase in selected_phases(settings).items()}
    found = {
        "engine": engine_kind,
        "version": engine_version,
        "engine_settings": digest(settings.engine.model_dump(mode="json", exclude=_FREE_ENGINE)),
        "patches": digest({name: patch_digest(name) for name in patches}),
        "model": digest(settings.model.model_dump(mode="json")),
        "workload": digest(
            {"phases": phases, "seed": settings.workload.seed, "slo": settings.workload.slo.model_dump(mode="json")} | _files(settings)
        ),
        "protocol": digest(settings.protocol.model_dump(mode="json", exclude=_FREE_PROTOCOL)),
        "node": digest(settings.node.model_dump(mode="json", exclude={"hosts"} | ({"machines"} if settings.node.machines == 1 else set()))),
        "grid": digest([[arm.name, arm.configuration_hash] for arm in arms]),
    }
    if identity is not None:
        found["build"] = identity.build
    return found


def _files(settings: Settings) -> dict[str, Any]:
    """The content of the files that the load is read from: a trace that was edited is another workload. {} without any."""
    paths = {phase.dataset_path for phase in selected_phases(settings).values()} | {settings.workload.guard_tasks}
    found = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] for path in paths if path and Path(path).is_file()}
    return {"files": found} if found else {}


def digest(value: Any) -> str:
    """16 hex digits over JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def patch_digest(name: str) -> str:
    """Over the files of a patch set (a path, or a folder experiments/*/patches/NAME); of the name alone where there are none."""
    folder = Path(name).expanduser()
    candidates = [folder] if folder.exists() else sorted((config_folder().parent / "experiments").glob(f"*/patches/{name}"))
    contents: Mapping[str, str] = {
        f"{place.name}/{file.relative_to(place) if place.is_dir() else file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for place in candidates
        for file in (sorted(place.rglob("*")) if place.is_dir() else [place])
        if file.is_file()
    }
    return digest([Path(name).name, dict(contents)])
