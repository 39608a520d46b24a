"""Imports go low to high, and nothing else: the house rule that keeps every room enterable."""

import ast
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent.parent / "runner"
LAYERS = [
    {"errors", "spec"},
    {"config", "records"},
    {"analysis"},
    {"engines", "loadgen"},
    {"planning"},
    {"execution"},
    {"tracking", "reporting"},
    {"__main__", "actions"},
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def room_of(path: Path) -> str:
    return path.relative_to(RUNNER).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "runner" and len(parts) > 1 and parts[1] in HEIGHT:
                rooms.add(parts[1])
    return rooms


FILES = sorted(path for path in RUNNER.rglob("*.py") if path.name != "__init__.py" or path.parent != RUNNER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RUNNER)))
def test_imports_go_low_to_high(path: Path) -> None:
    own = room_of(path)
    too_high = {room for room in imported_rooms(path) if room != own and HEIGHT[room] > HEIGHT[own]}
    siblings = {room for room in imported_rooms(path) if room != own and HEIGHT[room] == HEIGHT[own]} - {
        "spec",
        "errors",
        "config",
        "records",
    }
    assert not too_high, f"{path} ({own}) imports higher rooms: {too_high}"
    assert not siblings - {"actions"}, f"{path} ({own}) imports a room of its own height: {siblings}"


def test_every_room_has_a_height() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms <= set(HEIGHT), f"rooms without a height: {rooms - set(HEIGHT)}"


def test_the_runner_never_imports_the_engine() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.split(".")[0] == "sglang" for name in names), f"{path} imports sglang"
