"""What the played version's argument checks say before anything is started."""

from runner.engines.resolve import Resolution, ResolveRequest
from runner.engines.simulated.resolve import probe_simulated, resolve_simulated
from runner.spec.engine import EngineSpec
from tests.engines.simulated.support import H200_NODE, MOE, PCIE_NODE


def resolved(*argv: str, version: str = "0.5.9", env: dict[str, str] | None = None, h200: bool = False) -> Resolution:
    engine = EngineSpec(kind="simulated", version=version)
    words = ("--tp-size", "2" if h200 else "8", *argv)
    request = ResolveRequest(key="k", argv=words, env=env or {})
    (answer,) = resolve_simulated(engine, H200_NODE if h200 else PCIE_NODE, [request], MOE if h200 else None)
    assert answer.key == "k"
    assert answer.engine_version == version
    return answer


def test_equal_configurations_resolve_equal() -> None:
    assert resolved().resolved == resolved("--random-seed", "7").resolved
    assert resolved().resolved != resolved("--enable-mscclpp").resolved
    assert resolved("--tp", "8").resolved == resolved().resolved


def test_an_unknown_option_gives_the_last_line_only() -> None:
    answer = resolved("--no-such-flag", "3")
    assert not answer.ok
    assert answer.kind == "unknown_cli_option"
    assert answer.error == "launch_server.py: error: unrecognized arguments: --no-such-flag 3"


def test_a_bad_value_and_a_bad_combination_are_told_apart() -> None:
    assert resolved("--moe-runner-backend", "b12x").kind == "invalid_option_value"
    answer = resolved("--enable-two-batch-overlap", version="0.5.15")
    assert answer.kind == "rejected_argument_combination"
    assert answer.error.startswith("ValueError: When enabling two batch overlap")
    assert answer.where


def test_what_a_scheduler_refuses_is_not_known_here() -> None:
    assert resolved("--enable-single-batch-overlap", version="0.5.15", h200=True).ok
    assert resolved("--enable-flashinfer-allreduce-fusion", version="0.5.15").ok
    assert resolved(env={"SGLANG_MSCCLPP_MAX_BYTES": "1M"}).ok


def test_what_the_engine_switches_on_by_itself_is_resolved() -> None:
    answer = resolved(version="0.5.15", h200=True)
    assert answer.resolved["flashinfer_allreduce_fusion_backend"] == "auto"
    assert "Auto-enabling" in answer.log


def test_the_probe_tells_modules_and_capability() -> None:
    probe = probe_simulated(EngineSpec(kind="simulated", version="0.5.15"), H200_NODE)
    assert probe["capability"] == [9, 0]
    assert probe["importable"]["mscclpp"] is False
    assert probe["simulated"] is True
