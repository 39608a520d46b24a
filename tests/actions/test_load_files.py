"""Files that the load is read from are looked at before anything is started."""

from pathlib import Path

import pytest

from runner.loadgen.datasets import check_dataset
from runner.loadgen.guard import check_tasks


@pytest.mark.parametrize(
    ("dataset", "arrival", "text", "words"),
    [
        ("random_ids", "poisson", None, ""),
        ("trace", "trace", None, "arrival=trace needs dataset_path"),
        ("random_ids", "trace", None, "arrival=trace needs dataset_path"),
        ("text", "closed", None, "dataset=text needs dataset_path"),
        ("trace", "trace", '{"timestamp": 0, "input_length": 5, "output_length": 1}', ""),
        ("trace", "trace", '{"timestamp": 0, "input_length": 5}', "request 1"),
        ("trace", "closed", "no json", "request 1"),
        ("text", "closed", '{"prompt": "hi"}', ""),
        ("text", "closed", '{"nothing": "hi"}', "no conversation"),
        ("text", "closed", "[1, 2]", "dataset_path"),
        ("text", "closed", '{"conversations": "x"}', "dataset_path"),
    ],
)
def test_a_dataset_that_cannot_be_used_says_why(tmp_path: Path, dataset: str, arrival: str, text: str | None, words: str) -> None:
    path = tmp_path / "data.jsonl"
    if text is not None:
        path.write_text(text)
    said = check_dataset(dataset, arrival, None if text is None else str(path))
    assert (words in said) if words else said == ""


def test_a_file_that_is_not_there_or_is_binary(tmp_path: Path) -> None:
    assert "No such file" in check_dataset("text", "closed", str(tmp_path / "gone"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80" * 8)
    assert "dataset_path" in check_dataset("text", "closed", str(tmp_path / "binary"))
    assert "dataset_path" in check_dataset("trace", "trace", str(tmp_path / "binary"))
    assert "directory" in check_dataset("text", "closed", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a", "answer": "b"}\n\n{"question": "a", "answer": 3}\n', ""),
        ('{"prompt": "a", "answer": "b"}\n{oops\n', "line 2 is not JSON"),
        ('{"prompt": "a"}', 'line 1 is no task: it needs "prompt"'),
        ("[]", "line 1 is no task"),
        ("", "no task"),
    ],
)
def test_tasks_of_the_guard(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    said = check_tasks(str(path))
    assert (words in said) if words else said == ""
