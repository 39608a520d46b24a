"""SGLang in a container: the command line, and a life cycle in which a container is ended by its id and by nothing else.

No container runtime is at hand: a strict stand-in for the command is used (fake_docker.py)."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.engines import process
from runner.engines.base import LaunchFailed
from runner.engines.clean import clean
from runner.engines.container import ContainerEngine, container_name, gpu_words, mounts_of, run_words
from runner.engines.gpus import GpuDevice, Gpus
from runner.engines.guard import GuardedOwner
from runner.engines.httpserver import HttpServer
from runner.engines.ledger import Ledger, books
from runner.errors import UserError
from runner.spec.engine import Deadlines, EngineSpec
from runner.spec.model import ModelSpec
from tests.engines import fake_docker, fake_sglang
from tests.engines.owned_programs import until
from tests.engines.test_sglang import order_of

IMAGE = "fake/sglang:1"
DEADLINES = Deadlines(bind_s=10, distributed_s=5, silent_s=5, drain_s=0.3, terminate_s=1.0)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Path]:
    path = fake_docker.write(tmp_path / "docker")
    fake_sglang.write(tmp_path / "docker" / "site")
    daemon = subprocess.Popen([str(path), "daemon"], stdout=subprocess.PIPE)
    assert daemon.stdout is not None and daemon.stdout.readline() == b"up\n"
    yield path
    daemon.kill()
    daemon.wait()
    for left in containers(path):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(json.loads(left.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def spec(docker: Path, tmp_path: Path) -> EngineSpec:
    return EngineSpec(
        kind="container",
        image=IMAGE,
        container_runtime=str(docker),
        cache_root=str(tmp_path / "caches"),
        deadlines=DEADLINES,
        port_range=(23500, 23999),
    )


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return ModelSpec(name="tiny", path=str(folder), hidden_size=64, num_layers=2, load_format="dummy")


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[GuardedOwner]:
    made = GuardedOwner(Ledger(tmp_path, "s"), grace=0.3)
    try:
        yield made
    finally:
        made.close()


Launch = Callable[..., HttpServer]


@pytest.fixture
def launch(owner: GuardedOwner, spec: EngineSpec, model: ModelSpec, tmp_path: Path, docker: Path) -> Launch:
    (tmp_path / "l1").mkdir()

    def start(mode: str = "", **changes: object) -> HttpServer:
        return ContainerEngine(spec, Gpus(None)).start(order_of(spec, model, tmp_path, mode, **changes), owner)

    return start


def containers(docker: Path) -> list[Path]:
    return list((docker.parents[1] / "containers").glob("*.json"))


def asked(docker: Path) -> list[list[str]]:
    return [json.loads(line) for line in (docker.parents[1] / "asked.jsonl").read_text().splitlines()]


def pid_in(docker: Path) -> int:
    (path,) = containers(docker)
    return int(json.loads(path.read_text())["pid"])


def test_identity_comes_from_inside_the_image(spec: EngineSpec) -> None:
    identity = ContainerEngine(spec).identify()
    assert (identity.kind, identity.version) == ("container", fake_sglang.VERSION)
    with pytest.raises(UserError, match=r"engine.image=other is not on this machine .*pull other"):
        ContainerEngine(spec.model_copy(update={"image": "other"})).identify()
    with pytest.raises(UserError, match="choices: docker, podman"):
        ContainerEngine(spec.model_copy(update={"container_runtime": "sh"}))
    with pytest.raises(UserError, match="no such command"):
        ContainerEngine(spec.model_copy(update={"container_runtime": "/nowhere/docker"})).identify()
    with pytest.raises(UserError, match="needs an image"):
        ContainerEngine(spec.model_copy(update={"image": None}))


def test_ready_and_stop(launch: Launch, docker: Path, tmp_path: Path) -> None:
    server = launch(options={"tp-size": 8})
    ready = server.wait_ready()
    assert ready.pid is not None and pid_in(docker) not in server._owned.tree(), "a container is no child of its client"
    assert server.describe()["tp_size"] == "8" and server.reset() and server.alive()
    (book,) = books(tmp_path)
    assert any(entry.container == {"runtime": str(docker), "cidfile": str(tmp_path / "l1/container.id")} for entry in book.entries)
    run = asked(docker)[-2]
    assert asked(docker)[-1][:3] == ["inspect", "--format", "{{.State.Pid}}"]
    assert run[run.index("--name") + 1] == "runner-s-l1" and run[run.index("--cidfile") + 1] == str(tmp_path / "l1" / "container.id")
    assert f"{tmp_path / 'model'}:/runner/model:ro" in run
    assert run[run.index(IMAGE) + 1 :][:4] == ["-m", "sglang.launch_server", "--model-path", "/runner/model"]
    assert "TRITON_CACHE_DIR=/runner/caches/triton" in run
    pid = pid_in(docker)
    stopped = server.stop()
    assert (stopped.how, stopped.exit_code) == ("terminated", 0) and not process.is_live(pid) and not containers(docker)


def test_a_deaf_container_is_ended_by_its_id(launch: Launch, docker: Path, tmp_path: Path) -> None:
    server = launch("deaf")
    server.wait_ready()
    pid, identity = pid_in(docker), (tmp_path / "l1" / "container.id").read_text()
    stopped = server.stop()
    assert stopped.how == "killed" and not process.is_live(pid) and not containers(docker)
    assert ["rm", "--force", identity] in asked(docker)


def test_a_dead_client_ends_its_container(launch: Launch, docker: Path) -> None:
    server = launch("deaf")
    client = server.wait_ready().pid
    pid = pid_in(docker)
    assert client is not None
    os.kill(client, signal.SIGKILL)
    assert until(lambda: not process.is_live(pid), 5) and not server.alive()
    assert server.stop().how == "already_dead"


def test_closing_the_owner_ends_the_container(launch: Launch, owner: GuardedOwner, docker: Path) -> None:
    launch("deaf").wait_ready()
    pid = pid_in(docker)
    owner.close()
    assert not process.is_live(pid) and not containers(docker)


def test_a_killed_keeper_leaves_the_container_to_the_owner(launch: Launch, owner: GuardedOwner, docker: Path) -> None:
    launch("deaf").wait_ready()
    pid, keeper = pid_in(docker), owner._processes[-1].keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    assert until(lambda: not process.is_live(pid), 5)


def test_clean_ends_the_container_of_a_dead_study(launch: Launch, docker: Path, tmp_path: Path) -> None:
    """As after the death of owner, guard and keeper at once: only the ledger knows the container."""
    launch("deaf").wait_ready()
    pid = pid_in(docker)
    (book,) = books(tmp_path)
    dead = tmp_path / "dead"
    (dead / "ledger").mkdir(parents=True)
    lines = [json.loads(line) for line in book.path.read_text().splitlines()]
    lines[0]["owner"]["pid"] = 2**22 + 7
    only = [line for line in lines if "owner" in line or line.get("entry", {}).get("container")]
    only[1]["entry"] |= {"pid": 2**22 + 8, "token": ""}
    (dead / "ledger" / "x.jsonl").write_text("\n".join(json.dumps(line) for line in only) + "\n")
    report = clean(dead)
    assert report.containers == ((tmp_path / "l1" / "container.id").read_text()[:12],) and report.clean
    assert not process.is_live(pid)


def test_failure_inside_comes_out(launch: Launch) -> None:
    with pytest.raises(LaunchFailed) as failed:
        launch("unknown option").wait_ready()
    assert failed.value.failure.exit_code == 2 and "unrecognized arguments" in failed.value.failure.line


def test_the_command_line() -> None:
    argv = run_words(
        "/usr/bin/docker",
        name="runner-s-l",
        cidfile=Path("/l/container.id"),
        image="img",
        gpus=["--gpus", '"device=GPU-a,GPU-b"'],
        mounts=["/m:/runner/model:ro"],
        env={"A": "1=2"},
        words=["python3", "-m", "sglang.launch_server", "--port", "1"],
    )
    assert argv == [
        *("/usr/bin/docker", "run", "--init", "--rm", "--name", "runner-s-l", "--cidfile", "/l/container.id"),
        *("--network=host", "--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--shm-size", "32g"),
        *("--gpus", '"device=GPU-a,GPU-b"', "--volume", "/m:/runner/model:ro", "--env", "A=1=2"),
        *("--entrypoint", "python3", "img", "-m", "sglang.launch_server", "--port", "1"),
    ]


def test_gpus_of_both_runtimes() -> None:
    gpus = Gpus(None)
    assert gpu_words("docker", gpus) == []
    gpus.devices = [GpuDevice(0, "GPU-a", "H200", 1, 90), GpuDevice(1, "GPU-b", "H200", 1, 90)]
    assert gpu_words("/usr/bin/docker", gpus) == ["--gpus", '"device=GPU-a,GPU-b"']
    assert gpu_words("podman", gpus) == ["--device", "nvidia.com/gpu=GPU-a", "--device", "nvidia.com/gpu=GPU-b"]


def test_mounts_of_a_hub_snapshot_reach_its_blobs(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    mounts = mounts_of(snapshot, tmp_path / "caches", str(tmp_path / "overlay"))
    assert mounts == [
        f"{snapshot}:/runner/model:ro",
        f"{tmp_path / 'caches'}:/runner/caches",
        f"{blobs}:/blobs:ro",
        f"{tmp_path / 'overlay'}:/runner/overlay:ro",
    ]
    with pytest.raises(UserError, match="colon"):
        mounts_of(snapshot, Path("/a:b"), None)


def test_names_are_for_people_and_cannot_hold_anything_else(spec: EngineSpec, model: ModelSpec, tmp_path: Path) -> None:
    order = order_of(spec, model, tmp_path, study="a study; rm -rf /", launch="b1-p0-x=y-a1")
    assert container_name(order) == "runner-a-study-rm--rf-b1-p0-x-y-a1"


def test_the_images_interpreter_is_called_like_a_local_one(spec: EngineSpec, tmp_path: Path) -> None:
    """The words, the order on standard input, overlays and models reach it; nothing else of this environment does."""
    python = ContainerEngine(spec).identify().python
    assert python is not None
    script = tmp_path / "scripts" / "ask.py"
    script.parent.mkdir()
    script.write_text(
        "import json, os, sys\norder = json.load(sys.stdin)\n"
        "print(json.dumps({'order': order, 'path': os.environ['PYTHONPATH'], 'names': sorted(os.environ)}))\n"
    )
    (tmp_path / "overlay").mkdir()
    order = {"requests": [{"argv": ["--model-path", str(tmp_path)]}]}
    surroundings = {**os.environ, "PYTHONPATH": str(tmp_path / "overlay"), "NCCL_ALGO": "Ring", "HF_TOKEN": "planted"}
    done = subprocess.run(
        [python, "-u", str(script)], input=json.dumps(order), capture_output=True, text=True, env=surroundings, check=True
    )
    answer = json.loads(done.stdout)
    assert answer["order"] == order and answer["path"].startswith(str(tmp_path / "overlay"))
    assert "NCCL_ALGO" in answer["names"] and "HF_TOKEN" not in answer["names"]
    run = asked(Path(spec.container_runtime))[-1]
    assert {f"{tmp_path / 'scripts'}:{tmp_path / 'scripts'}:ro", f"{tmp_path}:{tmp_path}:ro"} <= set(run) and "--network=none" in run
    failing = subprocess.run([python, "-c", "raise SystemExit(3)"], stdin=subprocess.DEVNULL, check=False)
    assert failing.returncode == 3
