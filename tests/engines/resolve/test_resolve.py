"""Resolution against a small stand-in for the engine's argument module; the real one is in tests/engine."""

import sys
import time
from pathlib import Path

import pytest

from runner.engines.resolve import Resolution, ResolveFailed, ResolveRequest, options_of, resolve_all
from tests.engines.source_trees import small_package

ARGUMENTS = """
import argparse, dataclasses, os, random, signal, sys, time

print("noise on stdout while importing")
IMPORTED = os.getpid()

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    tp_size: int = 1
    kv_cache_dtype: str = "auto"
    enable_two_batch_overlap: bool = False
    enable_mscclpp: bool = False
    misbehave: str = ""
    random_seed: int = 0
    imported_by: int = 0
    seen: str = ""

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
        parser.add_argument("--kv-cache-dtype", choices=["auto", "bf16"], default="auto")
        parser.add_argument("--enable-two-batch-overlap", action="store_true")
        parser.add_argument("--enable-mscclpp", action="store_true")
        parser.add_argument("--misbehave", default="")

    def check_server_args(self):
        if self.enable_two_batch_overlap:
            raise ValueError("When enabling two batch overlap, moe_a2a_backend cannot be 'none'.")

def prepare_server_args(argv):
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    args = ServerArgs(**vars(parser.parse_args(argv)))
    args.random_seed = random.SystemRandom().randrange(1 << 60)
    args.imported_by = IMPORTED
    args.seen = os.environ.get("KNOB", "")
    os.environ["ENGINE_SET_THIS"] = str(args.tp_size)
    print("noise on stdout while resolving")
    if args.tp_size < 0:
        assert args.tp_size > 0
    if args.misbehave == "exit":
        os._exit(7)
    if args.misbehave == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.misbehave == "hang":
        time.sleep(60)
    if args.misbehave == "model":
        raise OSError("no config.json there")
    if args.misbehave == "odd":
        args.kv_cache_dtype = {"set": {3, 1, 2}, "inf": float("inf"), "object": object()}
    return args
"""


@pytest.fixture
def engine(tmp_path: Path) -> tuple[str, ...]:
    small_package(
        tmp_path, {"sglang/__init__.py": '__version__ = "9.9.9"\n', "sglang/srt/__init__.py": "", "sglang/srt/server_args.py": ARGUMENTS}
    )
    return (str(tmp_path),)


def request(key: str, *argv: str, **env: str) -> ResolveRequest:
    return ResolveRequest(key=key, argv=("--model-path", "m", *argv), env=env)


def resolve(engine: tuple[str, ...], *requests: ResolveRequest, timeout_s: float = 30, capability: int | None = None) -> list[Resolution]:
    return resolve_all(sys.executable, requests, python_path=engine, timeout_s=timeout_s, jobs=2, capability=capability)


def test_answers_come_in_the_order_of_the_requests(engine: tuple[str, ...]) -> None:
    answers = resolve(engine, *(request(str(size), "--tp-size", str(size)) for size in range(1, 9)))
    assert [answer.resolved["tp_size"] for answer in answers] == list(range(1, 9))
    assert all(answer.ok and not answer.kind and answer.engine_version == "9.9.9" for answer in answers)


def test_the_module_is_imported_once(engine: tuple[str, ...]) -> None:
    answers = resolve(engine, request("a"), request("b"))
    assert answers[0].resolved["imported_by"] == answers[1].resolved["imported_by"]


def test_equal_requests_compare_equal_because_random_values_are_set_aside(engine: tuple[str, ...]) -> None:
    one, two, other = resolve(engine, request("a"), request("b"), request("c", "--enable-mscclpp"))
    assert one.resolved == two.resolved != other.resolved
    assert "random_seed" in one.unstable and "random_seed" not in one.resolved


def test_what_drifts_with_time_is_set_aside_too(engine: tuple[str, ...]) -> None:
    # Free memory: changes rarely, but before the last arm is through.
    drift = "args.random_seed = time.monotonic() // 1e9 if args.tp_size == 1 and time.monotonic() < START + 1 else 7"
    text = ARGUMENTS.replace("IMPORTED = os.getpid()", "IMPORTED = os.getpid()\nSTART = time.monotonic()")
    text = text.replace("args.random_seed = random.SystemRandom().randrange(1 << 60)", drift).replace(
        'if args.misbehave == "hang":\n        time.sleep(60)', 'if args.misbehave == "slow":\n        time.sleep(1.2)'
    )
    small_package(Path(engine[0]), {"sglang/srt/server_args.py": text})
    answers = resolve(engine, request("a"), request("b", "--misbehave", "slow"))
    assert "random_seed" in answers[0].unstable


def test_random_values_are_set_aside_when_the_first_request_is_refused(engine: tuple[str, ...]) -> None:
    _, two, three = resolve(engine, request("a", "--enable-two-batch-overlap"), request("b"), request("c"))
    assert two.resolved == three.resolved


def test_the_second_check_of_a_launch_is_made(engine: tuple[str, ...]) -> None:
    (answer,) = resolve(engine, request("a", "--enable-two-batch-overlap"))
    assert (answer.ok, answer.kind) == (False, "rejected_argument_combination")
    assert answer.error == "When enabling two batch overlap, moe_a2a_backend cannot be 'none'."
    assert "server_args.py:" in answer.where


@pytest.mark.parametrize(
    ("argv", "kind", "error"),
    [
        (["--nope"], "unknown_cli_option", "unrecognized arguments: --nope"),
        (["--enable"], "unknown_cli_option", "ambiguous option: --enable could match --enable-two-batch-overlap, --enable-mscclpp"),
        (["--kv-cache-dtype", "fp9"], "invalid_option_value", "argument --kv-cache-dtype: invalid choice: 'fp9'"),
        (["--tp-size", "two"], "invalid_option_value", "argument --tp-size/--tensor-parallel-size: invalid int value: 'two'"),
        (["--tp-size", "-1"], "rejected_argument_combination", "AssertionError at server_args.py"),
        (["--misbehave", "model"], "model_not_readable", "no config.json there"),
        (["--misbehave", "exit"], "died", "exit code 7"),
        (["--misbehave", "kill"], "died", "signal 9"),
    ],
)
def test_refusals_in_the_engines_own_words(argv: list[str], kind: str, error: str, engine: tuple[str, ...]) -> None:
    bad, good = resolve(engine, request("bad", *argv), request("good"))
    assert (bad.ok, bad.kind) == (False, kind)
    assert error in bad.error
    assert good.ok, "one refused arm does not touch another"


def test_an_abbreviation_is_told(engine: tuple[str, ...]) -> None:
    (answer,) = resolve(engine, request("a", "--enable-msc"))
    assert answer.ok
    assert answer.notes == ("--enable-msc is not an option of this engine; it was taken as an abbreviation of --enable-mscclpp",)


def test_variables_reach_their_own_arm_only(engine: tuple[str, ...]) -> None:
    one, two = resolve(engine, request("a", KNOB="7"), request("b", "--tp-size", "2"))
    assert (one.resolved["seen"], two.resolved["seen"]) == ("7", "")
    assert (one.environment, two.environment) == ({"ENGINE_SET_THIS": "1"}, {"ENGINE_SET_THIS": "2"})


def test_odd_values_become_json_without_addresses(engine: tuple[str, ...]) -> None:
    (answer,) = resolve(engine, request("a", "--misbehave", "odd"))
    assert answer.resolved["kv_cache_dtype"] == {"inf": "inf", "object": "object", "set": [1, 2, 3]}


def test_a_hanging_arm_ends_with_the_time_limit(engine: tuple[str, ...]) -> None:
    begun = time.monotonic()
    answers = resolve(engine, request("good"), request("hang", "--misbehave", "hang"), timeout_s=1.5)
    assert time.monotonic() - begun < 20
    assert [(answer.ok, answer.kind) for answer in answers] == [(True, ""), (False, "timeout")]
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(engine[0]) in _environment(path.parent)]
    assert not left, "no process is left behind"


def _environment(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace").split("PYTHONPATH=")[1].split("\0")[0] if process.name.isdigit() else ""
    except (OSError, IndexError):
        return ""


def test_a_capability_that_was_not_seen_is_not_confirmed(engine: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    (seen,) = resolve(engine, request("a"), capability=None)
    assert seen.capability_confirmed
    (asked,) = resolve(engine, request("a"), capability=120)
    assert asked.capability_confirmed is (asked.capability == 120)
    assert Path("/dev/nvidia0").exists() or (asked.capability, asked.capability_confirmed) == (None, False)


def test_an_engine_that_cannot_be_forked_is_asked_in_a_process_an_arm(engine: tuple[str, ...]) -> None:
    refusal = "if os.getpid() != IMPORTED:\n        raise RuntimeError('Cannot re-initialize CUDA in forked subprocess. Use spawn.')\n    "
    text = ARGUMENTS.replace("args.random_seed = random", refusal + "args.random_seed = random")
    small_package(Path(engine[0]), {"sglang/srt/server_args.py": text})
    one, two = resolve(engine, request("a"), request("b", "--enable-two-batch-overlap"))
    assert one.ok and one.resolved["tp_size"] == 1 and "random_seed" not in one.resolved
    assert two.kind == "rejected_argument_combination"


def test_arms_in_processes_of_their_own_are_asked_beside_each_other(engine: tuple[str, ...], tmp_path: Path) -> None:
    """An engine takes ten seconds to import on a GPU node: a dozen arms one after another would cost minutes of an idle node. Here
    each waits until the other one is there."""
    met = tmp_path / "met"
    met.mkdir()
    refusal = (
        "if os.getpid() != IMPORTED:\n        raise RuntimeError('Cannot re-initialize CUDA in forked subprocess. Use spawn.')\n"
        f"    import pathlib, time\n    here = pathlib.Path({str(met)!r})\n    (here / str(os.getpid())).touch()\n    until = time.monotonic() + 20\n"
        "    while len(list(here.iterdir())) < 2:\n        time.sleep(0.02)\n        assert time.monotonic() < until, 'alone'\n    "
    )
    small_package(
        Path(engine[0]),
        {"sglang/srt/server_args.py": ARGUMENTS.replace("args.random_seed = random", refusal + "args.random_seed = random")},
    )
    assert [answer.ok for answer in resolve(engine, request("a"), request("b"))] == [True, True]


def test_the_options_are_asked_of_the_parser(engine: tuple[str, ...]) -> None:
    options = options_of(sys.executable, python_path=engine)
    assert {"tp-size", "tensor-parallel-size", "enable-mscclpp", "help"} <= options
    assert "enable-nothing" not in options


def test_modules_of_ours_never_stand_in_for_the_engines(engine: tuple[str, ...]) -> None:
    text = ARGUMENTS.replace("print(", 'import importlib.util\nassert importlib.util.find_spec("resolver_script") is None\nprint(', 1)
    small_package(Path(engine[0]), {"sglang/srt/server_args.py": text})
    assert resolve(engine, request("a"))[0].ok


@pytest.mark.parametrize(
    ("text", "said"), [("raise RuntimeError('no kernels')", "no kernels"), ("import torch_of_nowhere", "torch_of_nowhere")]
)
def test_an_engine_that_does_not_import_says_why(text: str, said: str, engine: tuple[str, ...]) -> None:
    small_package(Path(engine[0]), {"sglang/srt/server_args.py": text})
    with pytest.raises(ResolveFailed, match=said):
        resolve(engine, request("a"))


def test_an_interpreter_without_an_engine_or_no_interpreter_at_all() -> None:
    with pytest.raises(ResolveFailed, match="No module named 'sglang'"):
        resolve_all(sys.executable, [request("a")])
    with pytest.raises(ResolveFailed, match="there is no such file"):
        resolve_all("/no/python", [request("a")])


def test_nothing_asked_nothing_started_and_keys_must_differ() -> None:
    assert resolve_all("/no/python", []) == []
    with pytest.raises(ValueError, match="distinct"):
        resolve_all(sys.executable, [request("a"), request("a")])


def test_where_no_gpu_is_seen_the_device_is_named_unless_the_arm_names_one() -> None:
    request = ResolveRequest(key="a", argv=("--tp-size", "8"))
    assert request.as_on_cuda().argv == ("--tp-size", "8", "--device", "cuda")
    for named in (("--device", "cpu"), ("--device=cpu",)):
        assert ResolveRequest(key="a", argv=named).as_on_cuda().argv == named
