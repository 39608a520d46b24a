"""From Hydra's DictConfig to one frozen, validated Settings. No DictConfig leaves this file."""

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from pydantic import BaseModel, Field, ValidationError

from runner.errors import UserError, instead
from runner.spec.base import Strict
from runner.spec.engine import EngineSpec
from runner.spec.factor import FactorSpec
from runner.spec.model import ModelSpec
from runner.spec.node import NodeSpec
from runner.spec.protocol import Protocol
from runner.spec.study import ExecutionSpec, ScheduleSpec, StudySpec, TrackingSpec
from runner.spec.sweeps import write_out
from runner.spec.workload import WorkloadSpec


class Settings(Strict):
    """The whole configuration of one command."""

    action: str = "run"
    yes: bool = False
    json_output: bool = Field(default=False, alias="json")
    dry_run: bool = False
    study: StudySpec = StudySpec()
    node: NodeSpec
    engine: EngineSpec
    model: ModelSpec
    workload: WorkloadSpec
    protocol: Protocol
    tracking: TrackingSpec = TrackingSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    execution: ExecutionSpec = ExecutionSpec()
    grid: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    exclude: tuple[dict[str, str], ...] = ()
    include: tuple[dict[str, str], ...] = Field(default=(), description="arms added to the grid, written as levels")
    baseline: dict[str, str] = Field(default_factory=dict)
    pins: dict[str, Any] = Field(default_factory=dict, description="engine options every arm gets, so that nothing is left to the engine")
    pins_env: dict[str, str] = Field(default_factory=dict)
    phases: tuple[str, ...] = ()
    factors: dict[str, FactorSpec] = Field(default_factory=dict, description="filled in from conf/factor for the grid's keys")
    real_engine_only: bool = Field(default=False, description="this experiment refuses engine=auto and a simulated engine without dry_run")
    nightly: bool = False
    aa: bool = Field(default=False, description="A/A launches: every arm is the baseline (noise floor)")
    # actions that read files
    records: str | None = None
    log: str | None = None
    server_info: str | None = None
    probe: str | None = None
    metrics: str | None = None
    factor: FactorSpec | None = None
    level: str | None = None
    context: dict[str, Any] = Field(default_factory=dict)
    regrade: bool = Field(default=False, description="action=report: grade evidence again from the saved logs")
    at: str | None = None
    install: bool = False


def config_folder() -> Path:
    """The folder `conf`, beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parent
    beside = here.parent / "conf"
    return beside if beside.is_dir() else here / "conf"


def settings_from(config: DictConfig, folders: list[Path] | None = None, choices_made: dict[str, Any] | None = None) -> Settings:
    """Validates a composed configuration. `folders` are searched for factor files, first hit wins; `choices_made` are
    Hydra's group choices (names of the experiment and the factor). Raises UserError."""
    try:
        container = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:  # ${...} that names nothing
        raise UserError(explain_refusal(error)) from None
    if not isinstance(container, dict):
        raise UserError("the configuration is not a mapping")
    tree: dict[str, Any] = {str(key): value for key, value in container.items() if key != "hydra"}
    _check_shapes(tree)
    searched = folders or [config_folder()]
    grid = {str(name): _levels(str(name), value) for name, value in (tree.get("grid") or {}).items()}
    tree["grid"] = grid
    if tree.get("factors"):
        raise UserError("factors: is filled in from conf/factor; put a file there instead")
    made = choices_made or {}
    if made.get("experiment") and not (tree.get("study") or {}).get("experiment"):
        tree["study"] = {**(tree.get("study") or {}), "experiment": str(made["experiment"])}
    if isinstance(tree.get("factor"), dict) and made.get("factor"):
        tree["factor"] = {"name": str(made["factor"]), **tree["factor"]}
    tree["factors"] = {name: load_factor(name, searched) for name in _factor_names(tree, grid)}
    try:
        return Settings.model_validate(write_out(tree))
    except ValidationError as error:
        raise UserError(explain(error)) from None


def _check_shapes(tree: Mapping[str, Any]) -> None:
    """What is read before the model validates it has the right shape. Raises UserError."""
    for keys, kind, name in ((("study", "grid", "baseline"), dict, "mapping"), (("include", "exclude"), list, "list")):
        for key in keys:
            if tree.get(key) is not None and not isinstance(tree[key], kind):
                raise UserError(f"{key}: must be a {name} (given: {tree[key]!r})")


def _factor_names(tree: Mapping[str, Any], grid: dict[str, tuple[str, ...]]) -> list[str]:
    """Every factor that the grid, the baseline, an exclusion or an added arm names, in that order."""
    lists = [tree.get("baseline") or {}, *(tree.get("include") or []), *(tree.get("exclude") or [])]
    return list(dict.fromkeys([*grid, *(str(name) for levels in lists if isinstance(levels, dict) for name in levels)]))


def load_factor(name: str, folders: list[Path]) -> dict[str, Any]:
    """The factor file NAME.yaml. Raises UserError with the choices."""
    for folder in folders:
        path = folder / "factor" / f"{name}.yaml"
        if path.is_file():
            try:
                content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
                raise UserError(f"{path} cannot be read as YAML: {error}") from None
            levels = content.get("levels") if isinstance(content, dict) else None
            if not isinstance(levels, dict):
                raise UserError(f"{path}: `levels:` must be a mapping of level name to what it sets")
            for level in levels:
                if not isinstance(level, str):
                    raise UserError(f'{path}: level {level!r} is not text; quote it: "{_yaml_word(level)}"')
            return {"name": name, **content}
    known = {path.stem for folder in folders for path in (folder / "factor").glob("*.yaml")}
    raise UserError(f"there is no factor {name!r}{instead(name, known)}; to add one, write conf/factor/{name}.yaml")


def _levels(name: str, value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, str):
            raise UserError(f'grid.{name}: level {item!r} is not text; quote it: "{_yaml_word(item)}"')
    if not values:
        raise UserError(f"grid.{name} has no level; give at least one or remove it with ~grid.{name}")
    if len(set(values)) != len(values):
        raise UserError(f"grid.{name} names a level twice: {', '.join(values)}")
    return tuple(values)


def _yaml_word(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def explain(error: ValidationError) -> str:
    """A pydantic error as lines for the person: where, what is wrong, what was given."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "configuration"
        text = repr(item["input"])
        given = "" if isinstance(item["input"], (dict, list)) else f" (given: {text if len(text) <= 100 else text[:97] + '...'})"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            known = _known_keys(item["loc"][:-1])
            message = "unknown key" + (f"{instead(item['loc'][-1], known)}" if known else "")
        lines.append(f"{where}: {message}{given}")
    return "\n".join(lines)


def _known_keys(where: tuple[int | str, ...]) -> list[str]:
    """The keys that a place in the configuration has, or none where that place is no model of its own."""
    at: Any = Settings
    for part in where:
        if isinstance(at, type) and issubclass(at, BaseModel):
            fields = {field.alias or name: field.annotation for name, field in at.model_fields.items()}
            at = fields.get(str(part))
        else:  # an entry of a mapping or of a list
            at = next((each for each in reversed(get_args(at)) if each is not Ellipsis), None)
        at = next((each for each in get_args(at) if isinstance(each, type) and issubclass(each, BaseModel)), at) if _optional(at) else at
    return [field.alias or name for name, field in at.model_fields.items()] if isinstance(at, type) and issubclass(at, BaseModel) else []


def _optional(annotation: Any) -> bool:
    return isinstance(annotation, UnionType) or get_origin(annotation) is Union


def explain_refusal(error: Exception) -> str:
    """What Hydra, OmegaConf or the YAML reader refused, in a message that names an unknown key's legal neighbours."""
    from hydra.errors import MissingConfigException

    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"there is no {name!r} in conf group {group}{instead(name, error.options)}"
    for refused in (error, cause):
        if isinstance(refused, ConfigKeyError | ConfigAttributeError) and isinstance(refused.parent_node, DictConfig):
            known = [key for key in refused.parent_node if key != "hydra"]
            *where, name = str(refused.full_key).split(".")
            legal = _known_keys(tuple(where))
            more = f"; `+{refused.full_key}=...` adds it" if name in legal or not legal else ""  # or a mapping that takes any name
            others = {*known, *legal} - {name}
            return f"there is no key {refused.full_key!r}{instead(name, others)}{more}"
    return "\n".join(str(part).strip() for part in (error, cause) if part is not None)
