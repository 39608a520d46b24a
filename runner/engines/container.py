"""SGLang in a container, through docker or podman. The runtime's client is our process; the container is ended by its id.

A container does not descend from its client, so no signal reaches it through the process tree: its id file is in the ledger
before it runs, the guard ends it by that id when the client is gone, and `action=clean` does so after a dead study. Argument
lists and life cycle are tested against a strict stand-in for the command; no container runtime was at hand.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.engines.audit.packages import ENGINE_PACKAGES, Package, packages_in
from runner.engines.base import LaunchOrder, Owner, argv_of
from runner.engines.container_python import wrapper
from runner.engines.container_source import SCRIPT as COPY_SCRIPT
from runner.engines.container_source import copy_packages
from runner.engines.environment import CACHE_VARIABLES, base_environment, cache_home
from runner.engines.evidence.probe import probe_words, read_probe
from runner.engines.gpus import Gpus
from runner.engines.httpserver import HttpServer
from runner.engines.identity import PACKAGES, SCRIPT
from runner.engines.sglang import MODULE, command_of, launch_environment, memory_waiter, prepare
from runner.errors import UserError
from runner.records.paths import LaunchPaths, safe_name
from runner.records.schema import EngineIdentity
from runner.spec.engine import EngineSpec

CACHES_INSIDE = "/runner/caches"
OVERLAY_INSIDE = "/runner/overlay"
MODEL_INSIDE = "/runner/model"
SHM = "32g"
RUNTIMES = ("docker", "podman")


class ContainerEngine:
    """Implements `base.Engine` for `engine.image`. `spec.python` is the interpreter *inside* the image (default python3)."""

    kind = "container"

    def __init__(self, spec: EngineSpec, gpus: Gpus | None = None) -> None:
        if not spec.image:
            raise UserError("engine=container needs an image: engine.image=lmsysorg/sglang:v0.5.15.post1-cu129")
        if Path(spec.container_runtime).name not in RUNTIMES:
            raise UserError(f"engine.container_runtime={spec.container_runtime}: choices: {', '.join(RUNTIMES)} (or a path to one)")
        self.spec = spec
        self.image = spec.image
        self.python = spec.python or "python3"
        self._gpus = gpus
        self._identity: EngineIdentity | None = None

    @property
    def runtime(self) -> str:
        """The runtime's absolute path. Raises UserError when it is not installed."""
        found = shutil.which(self.spec.container_runtime)
        if found is None:
            raise UserError(f"engine.container_runtime={self.spec.container_runtime}: no such command on this machine")
        return found

    def _once(self, words: Sequence[str], gpus: Sequence[str] = ()) -> list[str]:
        """The command line of a fresh container without network that is removed when it ends."""
        return [self.runtime, "run", "--init", "--rm", "--network=none", *gpus, "--entrypoint", words[0], self.image, *words[1:]]

    def run_once(self, words: Sequence[str], timeout: float = 300.0, gpus: Gpus | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs `words` in such a container, without GPUs unless some are given: for identity and probe. Raises UserError."""
        try:
            return subprocess.run(
                self._once(words, gpu_words(self.runtime, gpus) if gpus is not None else ()),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
                env=base_environment() | _client_environment(),
            )
        except (OSError, subprocess.TimeoutExpired) as failed:
            raise UserError(f"engine.container_runtime={self.spec.container_runtime}: {failed}") from None

    def identify(self) -> EngineIdentity:
        """Version and build of the engine inside the image; the image's own id is part of the build. `python` is an executable here
        that runs the image's interpreter, so that resolve goes through the image. Raises UserError."""
        if self._identity is None:
            image_id = self._image_id()
            done = self.run_once([self.python, "-c", SCRIPT, *PACKAGES])
            try:
                answer = json.loads(done.stdout.strip().splitlines()[-1])
                version = answer["packages"]["sglang"]
            except (ValueError, IndexError, KeyError):
                said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise UserError(f"engine.image={self.image}: no sglang for {self.python} in this image ({said[:300]})") from None
            if self.spec.version is not None and version != self.spec.version:
                raise UserError(f"engine.version={self.spec.version} was asked for, but {self.image} has sglang {version}")
            material = json.dumps([answer["packages"], answer["records"], answer["source"], image_id], sort_keys=True)
            build = hashlib.sha256(material.encode()).hexdigest()[:16]
            callable_python = str(wrapper(cache_home(self.spec.cache_root), self.runtime, self.image, self.python))
            self._identity = EngineIdentity(
                kind="container", version=version, build=build, python=callable_python, packages=answer["packages"]
            )
        return self._identity

    def copy_source(self, folder: Path, names: Sequence[str] = ENGINE_PACKAGES, everything: bool = False) -> Path:
        """Copies packages of the engine out of the image into `folder`: what an audit reads, or `everything` for an overlay. Raises
        UserError."""
        words = [self.python, "-c", COPY_SCRIPT, "all" if everything else "text", *names]
        return copy_packages(self._once(words), base_environment() | _client_environment(), folder, self.image)

    def source(self) -> Path:
        """A folder with the source of the image's engine, to be read; copied once a build. Raises UserError."""
        return self._kept("text", ENGINE_PACKAGES, everything=False)

    def packages(self, names: Sequence[str]) -> dict[str, Package]:
        """The packages of the image as whole copies, for overlays; copied once a build. Raises UserError."""
        return packages_in(self._kept("-".join(sorted(names)), names, everything=True), names)

    def _kept(self, name: str, names: Sequence[str], everything: bool) -> Path:
        kept = cache_home(self.spec.cache_root) / "image-packages" / self.identify().build / name
        if not kept.is_dir():
            work = kept.with_name(f".{name}.{os.getpid()}")
            shutil.rmtree(work, ignore_errors=True)
            self.copy_source(work, names, everything)
            try:
                work.rename(kept)
            except OSError:  # somebody was quicker
                shutil.rmtree(work, ignore_errors=True)
        return kept

    def probe(self, gpus: Gpus) -> dict[str, Any]:
        """What the image's interpreter can import and sees, with the GPUs: without the driver's library nothing of CUDA imports, which
        would prove nothing. Empty without GPUs."""
        if not gpus.present:
            return {}
        return read_probe(self.run_once(probe_words(self.python), gpus=gpus))

    def _image_id(self) -> str:
        done = subprocess.run(
            [self.runtime, "image", "inspect", "--format", "{{.Id}}", self.image],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            env=base_environment() | _client_environment(),
        )
        if done.returncode != 0:
            raise UserError(
                f"engine.image={self.image} is not on this machine ({done.stderr.strip()[-200:]}); fetch it first: "
                f"{self.spec.container_runtime} pull {self.image}"
            )
        return done.stdout.strip()

    def start(self, order: LaunchOrder, owner: Owner) -> HttpServer:
        """Starts `docker run` in the foreground, so that its output is the server's log and its exit code the server's."""
        made = prepare(order, self.spec, self.identify().build, self._gpus, MODEL_INSIDE)
        inside = launch_environment(order.model_copy(update={"overlay": None}), self.spec, caches_inside(made.caches))
        if order.overlay:
            inside["PYTHONPATH"] = OVERLAY_INSIDE
        cidfile = Path(order.folder) / "container.id"
        cidfile.parent.mkdir(parents=True, exist_ok=True)
        cidfile.unlink(missing_ok=True)  # the runtime refuses to write over one
        argv = run_words(
            self.runtime,
            name=container_name(order),
            cidfile=cidfile,
            image=self.image,
            gpus=gpu_words(self.runtime, made.gpus),
            mounts=mounts_of(made.model, made.caches, order.overlay),
            env=inside,
            words=[self.python, "-m", MODULE, *argv_of(made.options)],
        )
        log = LaunchPaths(Path(order.folder)).server_log
        spawn: Any = owner.spawn
        owned = spawn(argv, base_environment() | _client_environment(), log, cwd=Path(order.folder), **self._ending(owner, cidfile))
        return HttpServer(
            owned,
            made.port,
            log,
            command_of(argv, inside, order),
            self.spec.deadlines,
            caches=(made.caches,),
            memory_free=memory_waiter(made.gpus),
            also_ours=FirstProcess(self.runtime, cidfile),
            trust_unknown=True,
        )

    def _ending(self, owner: Owner, cidfile: Path) -> dict[str, Any]:
        """What a guard needs to end the container; an owner without a guard ends the client only."""
        if not hasattr(owner, "ledger"):
            return {}
        words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("container_end.py")), self.runtime, str(cidfile)]
        return {"at_end": words, "container": {"runtime": self.runtime, "cidfile": str(cidfile)}}


class FirstProcess:
    """Calling it gives the pid, as seen from here, of a container's first process: none until it runs. Asked of the runtime once."""

    def __init__(self, runtime: str, cidfile: Path) -> None:
        self.runtime, self.cidfile = runtime, cidfile
        self._found: tuple[int, ...] = ()

    def __call__(self) -> tuple[int, ...]:
        if not self._found and self.cidfile.is_file() and (identity := self.cidfile.read_text(encoding="utf-8").strip()):
            try:
                done = subprocess.run(
                    [self.runtime, "inspect", "--format", "{{.State.Pid}}", identity],
                    capture_output=True,
                    text=True,
                    timeout=10,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    env=base_environment() | _client_environment(),
                )
            except (OSError, subprocess.TimeoutExpired):
                return ()
            pid = done.stdout.strip()
            self._found = (int(pid),) if done.returncode == 0 and pid.isdigit() and int(pid) > 1 else ()
        return self._found


def container_name(order: LaunchOrder) -> str:
    """Names study and launch for the person who reads `docker ps`; nothing is ever ended by it."""
    return f"runner-{safe_name(order.study)[:60]}-{safe_name(order.launch)[:60]}"


def caches_inside(caches: Path) -> dict[str, str]:
    """Cache variables as the container sees them; the folders are made here, where they are mounted from."""
    for name in CACHE_VARIABLES.values():
        (caches / name).mkdir(parents=True, exist_ok=True)
    return {variable: f"{CACHES_INSIDE}/{name}" for variable, name in CACHE_VARIABLES.items()}


def mounts_of(model: Path, caches: Path, overlay: str | None) -> list[str]:
    """`source:target[:ro]` for each mount. Snapshots of a hub are links into a folder beside them, which is mounted in its own place
    too; so are the files that an overlay links to by absolute path (the image's own, found inside)."""
    for place in (model, caches, *([overlay] if overlay else [])):
        if ":" in str(place):
            raise UserError(f"a path with a colon cannot be mounted into a container: {place}")
    mounts = [f"{model}:{MODEL_INSIDE}:ro", f"{caches}:{CACHES_INSIDE}"]
    blobs = {path.resolve().parent for path in model.iterdir() if path.is_symlink()} - {model}
    for place in sorted(blobs):
        # The links are relative (../../blobs/x): seen from /runner/model they point to /blobs.
        mounts.append(f"{place}:/{place.name}:ro")
    if overlay:
        mounts.append(f"{overlay}:{OVERLAY_INSIDE}:ro")
    return mounts


def gpu_words(runtime: str, gpus: Gpus) -> list[str]:
    """The GPUs that are visible here, by UUID; none where there is none. Podman takes them as CDI devices."""
    if not gpus.present:
        return []
    if Path(runtime).name == "podman":
        return [word for uuid in gpus.uuids for word in ("--device", f"nvidia.com/gpu={uuid}")]
    return ["--gpus", f'"device={",".join(gpus.uuids)}"']


def run_words(
    runtime: str,
    *,
    name: str,
    cidfile: Path,
    image: str,
    gpus: Sequence[str],
    mounts: Sequence[str],
    env: Mapping[str, str],
    words: Sequence[str],
) -> list[str]:
    """The whole command line: an init that reaps, removed when it ends, host network (the port is on loopback) and host IPC, large
    shared memory for NCCL, no limit on locked memory."""
    argv = [runtime, "run", "--init", "--rm", "--name", name, "--cidfile", str(cidfile)]
    argv += ["--network=host", "--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    if Path(runtime).name != "podman":  # podman refuses a size for the host's own shared memory
        argv += ["--shm-size", SHM]
    argv += gpus
    argv += [word for mount in mounts for word in ("--volume", mount)]
    argv += [word for pair in env.items() for word in ("--env", "=".join(pair))]
    return [*argv, "--entrypoint", words[0], image, *words[1:]]


def _client_environment() -> dict[str, str]:
    """What the runtime's client itself reads."""
    names = ("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "CONTAINER_HOST", "XDG_CONFIG_HOME")
    return {name: os.environ[name] for name in names if name in os.environ}
