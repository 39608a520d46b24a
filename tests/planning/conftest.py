"""Settings composed as the command line does, and plans made from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.config import Settings, config_folder, settings_from
from runner.planning.build import build_plan
from runner.records.plan import Plan

Compose = Callable[..., Settings]


@pytest.fixture(scope="session")
def compose() -> Compose:
    """`compose("+experiment=smoke", "node=cpu", folders=[...])` -> Settings; `folders` come before conf/, as --config-dir does.
    Equal overrides are composed once a session."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    made: dict[tuple[str, ...], Any] = {}

    def composed(*overrides: str, folders: list[Path] | None = None) -> Settings:
        if overrides not in made:
            GlobalHydra.instance().clear()
            with initialize_config_dir(str(config_folder()), version_base="1.3"):
                made[overrides] = hydra_compose("config", overrides=list(overrides))
        choices = {name.split("=")[0].lstrip("+"): name.split("=")[1] for name in overrides if "=" in name}
        return settings_from(made[overrides], [*(folders or []), config_folder()], choices)

    return composed


@pytest.fixture
def plan_of(compose: Compose) -> Callable[..., Plan]:
    """`plan_of("overlap_grid", "0.5.9", "protocol=quick", noise=...)` -> Plan by the rules alone, for a simulated engine."""

    def planned(experiment: str, version: str, *overrides: str, kind: str = "simulated", **more: Any) -> Plan:
        settings = compose(f"+experiment={experiment}", *overrides)
        return build_plan(settings, engine_kind=kind, engine_version=version, **more)

    return planned
