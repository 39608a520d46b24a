"""What the real engine makes of the overlap grid, on a machine without a GPU."""

import itertools
import time
from pathlib import Path

import pytest

from runner.engines.resolve import Resolution, ResolveRequest, options_of, resolve_all
from tests.engine.engine_python import ENGINE_PYTHON

pytestmark = pytest.mark.engine
ENV = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SWITCHES = (
    "--enable-mscclpp",
    "--enable-single-batch-overlap",
    "--enable-two-batch-overlap",
    "--enable-flashinfer-allreduce-fusion",
    "--disable-shared-experts-fusion",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    import json

    folder = tmp_path_factory.mktemp("model")
    shape = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 128, "head_dim": 32, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "eos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def words(model: str) -> tuple[str, ...]:
    return (
        "--model-path",
        model,
        "--load-format",
        "dummy",
        "--device",
        "cpu",
        "--attention-backend",
        "torch_native",
        "--skip-tokenizer-init",
    )


def test_the_grid_of_32_cells(model: str) -> None:
    cells = [tuple(itertools.compress(SWITCHES, chosen)) for chosen in itertools.product((0, 1), repeat=len(SWITCHES))]
    requests = [ResolveRequest(key=" ".join(cell) or "none", argv=(*words(model), *cell)) for cell in cells]
    begun = time.monotonic()
    answers = resolve_all(ENGINE_PYTHON, requests, env=ENV, capability=120)
    seconds = time.monotonic() - begun
    print(f"32 cells in {seconds:.1f} s")
    for cell, answer in zip(cells, answers, strict=True):
        assert answer.ok is ("--enable-two-batch-overlap" not in cell), answer.error
        if not answer.ok:
            assert answer.kind == "rejected_argument_combination"
            assert answer.error.startswith("When enabling two batch overlap without an EP a2a backend")
    assert not answers[0].capability_confirmed
    assert answers[0].engine_version == "0.5.15.post1"
    assert "random_seed" in answers[0].unstable


def test_other_refusals_are_the_engines_own(model: str) -> None:
    def ask(key: str, *argv: str) -> ResolveRequest:
        return ResolveRequest(key=key, argv=(*words(model), *argv))

    answers: dict[str, Resolution] = {
        answer.key: answer
        for answer in resolve_all(
            ENGINE_PYTHON,
            [
                ask("good"),
                ask("again"),
                ask("option", "--no-such-option"),
                ask("choice", "--kv-cache-dtype", "fp9"),
                ask("short", "--enable-mscc"),
                ResolveRequest(key="model", argv=("--model-path", str(Path(model) / "gone"))),
            ],
            env=ENV,
        )
    }
    assert answers["good"].resolved == answers["again"].resolved
    assert len(answers["good"].resolved) > 300
    assert answers["option"].kind == "unknown_cli_option"
    assert answers["option"].error == "unrecognized arguments: --no-such-option"
    assert answers["choice"].kind == "invalid_option_value"
    assert answers["short"].ok and "abbreviation of --enable-mscclpp" in answers["short"].notes[0]
    assert not answers["model"].ok


def test_options_of_the_installed_version() -> None:
    options = options_of(ENGINE_PYTHON, env=ENV)
    assert {"enable-mscclpp", "tp-size", "flashinfer-allreduce-fusion-backend"} <= options
    assert "nsa-kernel-of-the-future" not in options
