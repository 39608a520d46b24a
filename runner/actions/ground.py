"""What every action that plans stands on: which engine, which version, what it says of its own options."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config import Settings
from runner.engines.base import Engine
from runner.engines.modelfolder import resolve_path
from runner.engines.registry import choose_engine
from runner.engines.resolve import Resolution, ResolveRequest
from runner.engines.tiny_models import made_model
from runner.errors import UserError, choices
from runner.loadgen.datasets import check_dataset
from runner.records.files import read_json
from runner.records.paths import RootPaths, safe_name
from runner.records.plan import Plan
from runner.records.schema import EngineIdentity


@dataclass(frozen=True)
class Ground:
    """`engine` and `identity` are null when only the rules speak (plan without an installed engine)."""

    settings: Settings
    root: RootPaths
    kind: str
    version: str
    engine: Engine | None
    identity: EngineIdentity | None

    @property
    def simulated(self) -> bool:
        """Also when somebody's server, to which the runner attaches, is a simulated one."""
        return self.kind == "simulated" or (self.identity is not None and self.identity.simulated)


def root_of(settings: Settings) -> RootPaths:
    return RootPaths(Path(settings.tracking.root).resolve())


def check_experiment(settings: Settings) -> None:
    """Rules on which engine an experiment accepts, and names that must exist. Raises UserError."""
    if settings.real_engine_only:
        name = settings.study.experiment or "this experiment"
        if settings.engine.kind == "auto":
            raise UserError(
                f"{name} is made for a real engine and refuses engine=auto; give engine=sglang engine.python=/path/to/bin/python"
            )
        if settings.engine.kind == "simulated" and not settings.dry_run:
            raise UserError(
                f"{name} is made for a real engine; engine=simulated is accepted there only with dry_run=true (marked SIMULATED)"
            )
    unknown = [name for name in settings.phases if name not in settings.workload.phases]
    if unknown:
        raise UserError(
            f"workload {settings.workload.name} has no phase {', '.join(map(repr, unknown))}; choices: {choices(settings.workload.phases)}"
        )
    for name in settings.phases or settings.workload.phases:
        phase = settings.workload.phases[name]
        wrong = check_dataset(phase.dataset, phase.arrival, phase.dataset_path)
        if wrong:
            raise UserError(f"workload.phases.{name}: {wrong}")
    if settings.workload.guard_tasks:
        from runner.loadgen.guard import check_tasks

        if wrong := check_tasks(settings.workload.guard_tasks):
            raise UserError(f"workload.guard_tasks: {wrong}")


def for_tonight(settings: Settings) -> Settings:
    """A night measures a fixed number of blocks and confirms nothing: the history decides. Other studies stay as they are."""
    if not settings.nightly:
        return settings
    blocks = max(1, settings.schedule.blocks_per_night)
    protocol = settings.protocol.model_copy(update={"min_blocks": blocks, "max_blocks": blocks, "confirm": False, "aa_arm": "never"})
    return settings.model_copy(update={"protocol": protocol})


def find_ground(settings: Settings, need_engine: bool) -> Ground:
    """Chooses the engine. With `need_engine` false a missing engine is no error as long as a version is given."""
    check_experiment(settings)
    settings = for_tonight(settings)
    root = root_of(settings)
    try:
        engine = choose_engine(settings.engine, settings.node)
        identity = engine.identify()
    except UserError:
        if need_engine or settings.engine.version is None:
            raise
        kind = settings.engine.kind if settings.engine.kind != "auto" else "sglang"
        return Ground(settings, root, kind, settings.engine.version, None, None)
    return Ground(with_model(settings, root, identity), root, engine.kind, identity.version, engine, identity)


def with_model(settings: Settings, root: RootPaths, identity: EngineIdentity) -> Settings:
    """The settings with the model's folder: a tiny synthetic model is made on demand, every other path is the user's to give.
    Raises UserError when a real engine would be launched without a model, and when the folder that was given is not there."""
    model = settings.model
    if identity.kind == "simulated" and model.path is not None:
        resolve_path(model.path)  # nothing of it is read, but a mistyped folder is not passed over
    if identity.kind in ("simulated", "attached") or model.path is not None:
        return settings
    if model.synthetic is None or identity.python is None or identity.kind == "container":
        raise UserError(f"model {model.name} has no path; give model.path=/path/to/the/model (a folder, or org/name of a local snapshot)")
    folder = made_model(model.synthetic, root.root / "models", identity.python, settings.engine.extra_python_path)
    return settings.model_copy(update={"model": model.model_copy(update={"path": str(folder)})})


def resolver(ground: Ground) -> Callable[[list[ResolveRequest]], list[Resolution]] | None:
    """What asks the engine for its last word, or None when there is no engine to ask."""
    settings = ground.settings
    if ground.kind == "simulated":
        from runner.engines.simulated.resolve import resolve_simulated

        return lambda requests: resolve_simulated(settings.engine, settings.node, requests, settings.model)
    if ground.identity is None or ground.identity.python is None:
        return None
    from runner.engines.gpus import visible_count
    from runner.engines.resolve import resolve_all

    python = ground.identity.python
    blind = settings.node.gpus > 0 and (ground.kind == "container" or visible_count() == 0)  # images are asked without their GPUs
    return lambda requests: resolve_all(
        python,
        [request.as_on_cuda() for request in requests] if blind else requests,
        env=settings.node.env | settings.engine.env,
        python_path=settings.engine.extra_python_path,
        capability=settings.node.capability or None,
    )


def reader(ground: Ground) -> Callable[[list[str]], dict[str, bool | None]] | None:
    """What tells whether this version's source reads an environment variable."""
    if ground.identity is None or ground.identity.python is None or ground.simulated:
        return None
    from runner.engines.container import ContainerEngine
    from runner.engines.resolve import env_reads

    if isinstance(ground.engine, ContainerEngine):
        image = ground.engine
        return lambda names: env_reads(image.source(), names)
    python, places = ground.identity.python, ground.settings.engine.extra_python_path
    return lambda names: env_reads(python, names, python_path=places)


def absent_packages(ground: Ground) -> frozenset[str]:
    """Python packages that flags need and that the engine's environment does not have; none where nobody can tell."""
    from runner.engines.audit.packages import ENGINE_PACKAGES, packages_in, packages_of
    from runner.engines.container import ContainerEngine
    from runner.engines.simulated.resolve import probe_simulated

    if ground.kind == "simulated":
        importable = probe_simulated(ground.settings.engine, ground.settings.node)["importable"]
        return frozenset(name for name, there in importable.items() if not there)
    if ground.identity is None or ground.identity.python is None:
        return frozenset()
    if isinstance(ground.engine, ContainerEngine):
        found = packages_in(ground.engine.source())
    else:
        found = packages_of(ground.identity.python, python_path=ground.settings.engine.extra_python_path)
    return frozenset(ENGINE_PACKAGES) - frozenset(found)


def node_file(ground: Ground, name: str) -> Any | None:
    """A JSON file of what was learned about the node, or None. Simulated and real histories never mix."""
    prefix = "SIMULATED-" if ground.simulated else ""
    path = ground.root.nodes / safe_name(prefix + ground.settings.node.name) / name
    return read_json(path) if path.is_file() else None


def make_plan(ground: Ground, study: str = "", with_engine: bool = True) -> Plan:
    """The plan of these settings on this ground."""
    from runner.actions.budget import node_budget
    from runner.planning.build import build_plan

    manifest = model_manifest(ground)  # first: a missing shard is said before the engine is asked anything
    plan = build_plan(
        ground.settings,
        engine_kind=ground.kind,
        engine_version=ground.version,
        identity=ground.identity,
        resolve=resolver(ground) if with_engine else None,
        reads=reader(ground) if with_engine else None,
        absent=absent_packages(ground) if with_engine else (),
        learned=node_file(ground, "launch_costs.json"),
        noise=node_file(ground, "noise_floor.json"),
        communication=None if ground.simulated else node_budget(ground.settings),
        study=study,
    )
    return plan.model_copy(update={"identity": plan.identity | manifest}) if manifest else plan


def model_manifest(ground: Ground) -> dict[str, str]:
    """A hash over the model's files for a real engine, so that a study is never continued with other weights."""
    path = ground.settings.model.path
    if ground.kind not in ("sglang", "container") or path is None or ground.identity is None:
        return {}
    from runner.engines.modelfolder import model_folder

    return {"model_files": model_folder(ground.settings.model).manifest}
