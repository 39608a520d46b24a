"""Planted secrets are found wherever they come in, and ordinary values stay as they are."""

import json
from pathlib import Path

import pytest

from runner.records.secrets import HIDDEN, is_secret_name, scrub_argv, scrub_mapping, scrub_text

FIXTURES = Path(__file__).parent.parent / "fixtures"
PLANTED = "planted0secret1planted2"

LEAKY_LINES = [
    f"HF_TOKEN={PLANTED}",
    f"export HUGGING_FACE_HUB_TOKEN='{PLANTED}'",
    f"AWS_SECRET_ACCESS_KEY: {PLANTED}",
    f"env: AWS_ACCESS_KEY_ID={PLANTED} AWS_SESSION_TOKEN={PLANTED}",
    f"server_args=ServerArgs(model_path='/m', api_key='{PLANTED}', admin_api_key=\"{PLANTED}\", tp_size=8)",
    f"server_args={{'model_path': '/m', 'api_key': '{PLANTED}', 'ssl_keyfile_password': '{PLANTED}'}}",
    f'{{"api_key": "{PLANTED}", "max_total_tokens": 5}}',
    f"sglang serve --model-path /m --api-key {PLANTED} --port 30000",
    f"sglang serve --admin-api-key={PLANTED} --port 30000",
    f"['python', '-m', 'sglang.launch_server', '--api-key', '{PLANTED}', '--port', '1']",
    f"Authorization: Bearer {PLANTED}",
    f"'authorization': 'Basic {PLANTED}'",
    f'curl -H "Authorization: Bearer {PLANTED}" http://127.0.0.1:30000/generate',
    f"cloning https://user:{PLANTED}@example.org/repo.git",
    f"cloning https://{PLANTED}@example.org/repo.git",
    f"GET https://bucket.example.org/w.safetensors?X-Amz-Signature={PLANTED}&x=1",
    f"password = {PLANTED}",
    f"MLFLOW_TRACKING_PASSWORD={PLANTED}",
    f"OPENAI_API_KEY={PLANTED}",
]
SHAPES = [
    "sk-proj-abcdefghijklmnopqrstuvwx",
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "AKIAABCDEFGHIJKLMNOP",
    "nvapi-abcdefghijklmnopqrstuvwxyz",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl",
]
ORDINARY_LINES = [
    "max_total_tokens=16384, max_prefill_tokens=16384, tokenizer_path='/models/x', tokenizer_mode='auto'",
    "token usage: 0.00, input throughput (token/s): 1.14, #new-token: 12, #cached-token: 0",
    "eos_token_id=151645, 'bos_token': '<s>', pad_token: <pad>",
    "api_key=None, admin_api_key=None, ssl_keyfile=None, ssl_keyfile_password=None",
    "tbo_token_distribution_threshold=0.48, num_reserved_decode_tokens=512",
    "ssl_keyfile='/etc/tls/server.key'",
    'INFO:     127.0.0.1:48452 - "GET /model_info HTTP/1.1" 200 OK',
    "Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
    "dist_init_method=tcp://127.0.0.1:29500 path=/a@b",
    "KeyError: 'model.layers.0.mlp.key'",
    "key: value, monkey: banana, routing_keys_active 0.0",
    "see https://github.com/sgl-project/sglang/tree/main/benchmark",
    "torch.Size([163840, 64]) task-scheduler risk-averse-long-words-are-fine",
    "patch=abc, path: /x, pattern=3",
]


@pytest.mark.parametrize("line", LEAKY_LINES)
def test_a_planted_secret_is_gone_and_the_rest_of_its_line_stays(line: str) -> None:
    scrubbed = scrub_text(line)
    assert PLANTED not in scrubbed
    assert HIDDEN in scrubbed
    kept = line.split(PLANTED)[0]
    assert scrubbed.startswith(kept.rstrip("\"'"))


@pytest.mark.parametrize("secret", SHAPES)
@pytest.mark.parametrize("place", ["{}", "loading with {} now", "x={}", '"note": "{}"', "https://a.org/?q={}"])
def test_a_secret_is_known_by_its_shape_wherever_it_stands(secret: str, place: str) -> None:
    assert secret not in scrub_text(place.format(secret))


@pytest.mark.parametrize("line", ORDINARY_LINES)
def test_ordinary_lines_stay(line: str) -> None:
    assert scrub_text(line) == line


def test_real_logs_and_bodies_lose_nothing() -> None:
    for path in [*FIXTURES.glob("h200/*.log"), *FIXTURES.glob("h200/*.json"), *FIXTURES.glob("cpu/*.log")]:
        text = path.read_text(errors="replace")
        assert scrub_text(text) == text, path.name


def test_a_key_block_goes_and_the_line_count_stays() -> None:
    text = "before\n-----BEGIN PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END PRIVATE KEY-----\nafter"
    scrubbed = scrub_text(text)
    assert "MII" not in scrubbed
    assert scrubbed.count("\n") == text.count("\n")
    assert scrubbed.startswith("before\n") and scrubbed.endswith("\nafter")


def test_scrubbing_twice_changes_nothing_more() -> None:
    for line in LEAKY_LINES:
        assert scrub_text(scrub_text(line)) == scrub_text(line)


def test_mappings_are_scrubbed_at_every_depth_and_keep_their_shape() -> None:
    body = {
        "api_key": PLANTED,
        "admin_api_key": None,
        "env": {"HF_TOKEN": PLANTED, "HOME": "/home/u", "NCCL_ALGO": "Ring", "EMPTY_TOKEN": ""},
        "internal_states": [{"api_key": PLANTED, "max_total_num_tokens": 5}],
        "launch_command": f"sglang serve --api-key {PLANTED} --port 1",
        "argv": ["--api-key", PLANTED, "--port", "1"],
        "secrets": [PLANTED],
        "tokenizer_path": "/models/x",
        "eos_token_id": [1, 2],
        "stop_token_ids": [3],
        "ratio": 0.5,
        "nothing": None,
    }
    scrubbed = scrub_mapping(body)
    assert PLANTED not in json.dumps(scrubbed)
    assert set(scrubbed) == set(body)
    for kept in ("tokenizer_path", "eos_token_id", "stop_token_ids", "ratio", "nothing", "admin_api_key"):
        assert scrubbed[kept] == body[kept]
    assert scrubbed["env"]["HOME"] == "/home/u" and scrubbed["env"]["EMPTY_TOKEN"] == ""
    assert scrubbed["internal_states"][0]["max_total_num_tokens"] == 5
    assert body["api_key"] == PLANTED, "the caller's own mapping stays as it was"


def test_argv_in_its_forms() -> None:
    argv = ["python", "--api-key", PLANTED, f"--admin-api-key={PLANTED}", f"HF_TOKEN={PLANTED}", "--max-total-tokens", "7", "--port", "1"]
    scrubbed = scrub_argv(argv)
    assert PLANTED not in " ".join(scrubbed)
    assert len(scrubbed) == len(argv)
    assert scrubbed[-4:] == ("--max-total-tokens", "7", "--port", "1")
    assert scrub_argv(["--api-key", "--port", "1"]) == ("--api-key", "--port", "1"), "a switch without a value hides no option"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "api_key",
        "admin-api-key",
        "AWS_SECRET_ACCESS_KEY",
        "ssl_keyfile_password",
        "Authorization",
        "GITHUB_TOKEN",
        "client_secret",
        "apiKey",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_total_tokens",
        "tokenizer_path",
        "eos_token_id",
        "bos_token",
        "ssl_keyfile",
        "key",
        "token",
        "cache_key_prefix",
        "path",
        "PWD",
        "per_token",
        "compat",
    ],
)
def test_names_of_ordinary_things(name: str) -> None:
    assert not is_secret_name(name)
