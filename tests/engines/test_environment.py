"""What an engine process gets of the shell's environment, and where its compilers write."""

from pathlib import Path

from runner.engines.environment import base_environment, cache_environment, cache_folder, overlay_hash, python_path


def test_only_what_an_engine_needs_is_kept() -> None:
    shell = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "3,2, 10",
        "NCCL_DEBUG": "INFO",
        "SGLANG_USE_CPU_ENGINE": "1",
        "https_proxy": "http://proxy",
        "HF_TOKEN": "x",
        "PYTHONPATH": "/x",
        "RAY_ADDRESS": "auto",
        "VIRTUAL_ENV": "/v",
        "OMP_NUM_THREADS": "1",
    }
    assert base_environment(shell) == {"PATH": "/bin", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "2,3,10"}
    assert base_environment({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"})["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert base_environment({"CUDA_VISIBLE_DEVICES": ""}) == {"CUDA_VISIBLE_DEVICES": ""}, "no GPU must stay no GPU"


def test_caches_differ_by_build_and_overlay(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "a.py").write_text("1")
    (tmp_path / "o" / "link.py").symlink_to("/etc/hostname")
    first = overlay_hash(str(tmp_path / "o"))
    folders = {cache_folder(str(tmp_path), build, overlay) for build in ("b1", "b2") for overlay in (None, str(tmp_path / "o"))}
    assert len(folders) == 4
    (tmp_path / "o" / "link.py").unlink()
    assert overlay_hash(str(tmp_path / "o")) == first, "a link to an unchanged file says nothing"
    (tmp_path / "o" / "a.py").write_text("2")
    assert overlay_hash(str(tmp_path / "o")) != first
    made = cache_environment(tmp_path / "caches")
    assert {"TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"} <= set(made)
    assert all(Path(place).is_dir() for place in made.values())


def test_the_overlay_goes_first() -> None:
    assert python_path("/overlay", ["/extra"]) == {"PYTHONPATH": "/overlay:/extra"}
    assert python_path(None, ()) == {}
