"""The engine's interpreter, Ray, the MLflow store, the load client."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.actions.checks.finding import Finding, fail, ok, warn
from runner.engines.modelfolder import resolve_path
from runner.errors import RunnerError, UserError
from runner.loadgen.base import ClientBroken
from runner.records.schema import EngineIdentity
from runner.spec.engine import EngineSpec
from runner.spec.study import ExecutionSpec, TrackingSpec

SHOWN_PACKAGES = ("torch", "flashinfer-python", "sgl-kernel", "sglang-kernel", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "mscclpp")


def check_engine(spec: EngineSpec, kind: str, identify: Callable[[], EngineIdentity], known_versions: str) -> list[Finding]:
    """Interpreter, version, packages. `identify` raises UserError where there is no engine."""
    from packaging.specifiers import SpecifierSet

    if kind != "container" and spec.python is not None and not Path(spec.python).is_file():  # an image's own cannot be seen from here
        return [fail("engine", f"engine.python={spec.python}: there is no such file", "give the interpreter of the engine's environment")]
    if kind == "simulated":
        unused = (
            [warn("engine", f"engine.python={spec.python} is not used by the simulated engine", "engine=sglang")] if spec.python else []
        )
        return [
            *unused,
            warn(
                "engine",
                f"simulated{f', playing {spec.version}' if spec.version else ''}: every result would be SIMULATED",
                "engine=sglang engine.python=... for a real one",
            ),
        ]
    try:
        identity = identify()
    except UserError as error:
        return [fail("engine", str(error).splitlines()[0], "engine.python=/path/to/venv/bin/python of an environment with sglang")]
    packages = ", ".join(f"{name} {identity.packages[name]}" for name in SHOWN_PACKAGES if name in identity.packages)
    text = f"{identity.kind} {identity.version} in {identity.python or '-'}" + (f"; {packages}" if packages else "")
    if not SpecifierSet(known_versions).contains(identity.version, prereleases=True):
        return [
            warn(
                "engine", text, f"the rules were read from {known_versions}; what the plan calls unconfirmed is asked of the engine itself"
            )
        ]
    return [ok("engine", text)]


def check_model(path: str | None) -> list[Finding]:
    """A folder of weights (or a snapshot `org/name`) that is named must be there; a synthetic model needs none."""
    if path is None:
        return []
    try:
        return [ok("model", str(resolve_path(path)))]
    except UserError as error:
        return [fail("model", str(error), "model.path=null serves a synthetic model where there is one")]


def check_ray(
    version: str | None,
    execution: ExecutionSpec,
    environment: Mapping[str, str],
    answers: Callable[[str], None],
    cluster_file: Path | None = None,
) -> list[Finding]:
    """Installed, and does the address answer? `answers` raises UserError when it does not. Ray is not imported."""
    if execution.executor == "inline":
        return [ok("Ray", f"not used (execution.executor=inline), {version or 'not installed'}")]
    if version is None:
        return [fail("Ray", "not installed", "pip install 'ray>=2.60,<3', or execution.executor=inline")]
    address = execution.ray.address
    if address is not None:
        try:
            answers(address)
        except UserError as error:
            return [fail("Ray", str(error).splitlines()[0], "start the cluster, or execution.ray.address=null for a local Ray")]
        return [ok("Ray", f"{version}, cluster {address} answers")]
    if environment.get("RAY_ADDRESS"):
        return [warn("Ray", f"{version}, local; RAY_ADDRESS is set and not used", "name a cluster with execution.ray.address=HOST:PORT")]
    found = [ok("Ray", f"{version}, local")]
    with contextlib.suppress(OSError):
        stale = (cluster_file or Path("/tmp/ray/ray_current_cluster")).read_text(encoding="utf-8").strip()  # noqa: S108
        if stale:
            try:
                answers(stale)
            except UserError:
                found.append(
                    warn(
                        "Ray",
                        f"{stale} is noted as this machine's cluster and does not answer",
                        "harmless here; other tools with address=auto hang on it",
                    )
                )
    return found


def check_store(database: Path, tracking: TrackingSpec, version: str | None, reach: Callable[[str], str | None]) -> list[Finding]:
    """The MLflow store, without importing MLflow. `reach` asks a server and says what is wrong, or None."""
    if not tracking.enabled:
        return [ok("MLflow store", "not used (tracking.enabled=false)")]
    if version is None:
        return [fail("MLflow store", "mlflow is not installed", "pip install 'mlflow>=3.5,<4', or tracking.enabled=false")]
    if tracking.uri is not None and not tracking.uri.startswith("sqlite:"):
        wrong = reach(tracking.uri)
        if wrong is not None:
            return [
                warn("MLflow store", f"the tracking server does not answer ({wrong})", "records wait and are sent by action=track later")
            ]
        return [ok("MLflow store", f"mlflow {version}, the server answers")]
    folder = next((parent for parent in (database.parent, *database.parent.parents) if parent.exists()), Path("/"))
    if not os.access(folder, os.W_OK):
        return [fail("MLflow store", f"{folder} is not writable", "point tracking.root at a folder that is")]
    if not database.exists():
        return [ok("MLflow store", f"mlflow {version}; {database} will be made by the first study")]
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=2)) as store:
            runs = store.execute("select count(*) from runs").fetchone()[0]
    except sqlite3.Error as error:
        return [fail("MLflow store", f"{database}: {error}", "move it away: action=track rebuilds the view from the records")]
    return [ok("MLflow store", f"mlflow {version}, {database.name} with {runs} runs")]


def check_client(calibrate: Callable[[], tuple[float, bool, str, float]]) -> list[Finding]:
    """`calibrate` gives (chunks a second at most, fit, note, median TTFT error in ms at the widest level)."""
    try:
        ceiling, fit, note, error_ms = calibrate()
    except (ClientBroken, RunnerError, OSError) as error:
        return [fail("load client", f"the calibration broke: {error}", "action=doctor again; if it stays, report it")]
    text = f"one client reads at most {ceiling:,.0f} chunks/s here; median TTFT error {error_ms:.2f} ms"
    return (
        [ok("load client", text)]
        if fit
        else [warn("load client", f"{text}; {note}", "end what else runs here, or give the client free cores")]
    )
