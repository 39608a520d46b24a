"""A model is checked before a GPU second is spent on it."""

import json
from pathlib import Path

import pytest

from runner.engines.modelfolder import model_folder
from runner.errors import UserError
from runner.spec.model import ModelSpec


def model(path: object, **changes: object) -> ModelSpec:
    words = {"name": "glm5", "path": None if path is None else str(path), "hidden_size": 8, "num_layers": 1} | changes
    return ModelSpec.model_validate(words)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A folder with an index and its three shards."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        (folder / name).write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (folder / "config.json").write_text("{}")
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_whole_model(whole: Path) -> None:
    found = model_folder(model(whole))
    assert (found.path, found.shards, found.weight_bytes) == (whole, 3, 48) and len(found.manifest) == 16
    assert model_folder(model(whole)) == found
    (whole / "config.json").write_text('{"a": 1}')
    assert model_folder(model(whole)).manifest != found.manifest


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(), r"1 of 3 shards .* missing: model-00002-of-00003"),
        (lambda folder: (folder / "model-00003-of-00003.safetensors").write_bytes(b""), "00003.safetensors is empty; the download was cut"),
        (
            lambda folder: (folder / "model-00001-of-00003.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            "Git LFS pointer",
        ),
        (lambda folder: (folder / "config.json").unlink(), r"no config.json there \(found: model-00001"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is no JSON"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "not readable as an index"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
            "names files outside its folder",
        ),
    ],
)
def test_a_broken_model_is_named(whole: Path, break_it: object, words: str) -> None:
    break_it(whole)  # type: ignore[operator]
    with pytest.raises(UserError, match=words):
        model_folder(model(whole))


def test_random_weights_need_only_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no weights there .*model\.load_format=dummy"):
        model_folder(model(tmp_path))
    assert model_folder(model(tmp_path, load_format="dummy")).shards == 0


def test_no_path_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"model glm5 has no path: where are its weights\? Give model\.path="):
        model_folder(model(None))


def test_a_missing_folder_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        model_folder(model(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        model_folder(model(tmp_path / "file"))


def test_a_repository_name_is_its_local_snapshot(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--zai-org--GLM-5"
    for commit in ("aaa", "bbb"):
        folder = repository / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("aaa")
    found = model_folder(model("zai-org/GLM-5", load_format="dummy"), env={"HF_HUB_CACHE": str(tmp_path / "hub")})
    assert found.path == repository / "snapshots" / "aaa"
    with pytest.raises(UserError, match=r"no snapshot of that name in .*hub.* Download it first \(`hf download zai-org/other`\)"):
        model_folder(model("zai-org/other"), env={"HF_HOME": str(tmp_path)})
