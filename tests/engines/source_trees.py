"""Puts the source excerpts of `tests/fixtures/sources` back into package folders."""

from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures" / "sources"
VERSIONS = ("0.5.9", "0.5.15.post1", "0.5.23")


def source_tree(version: str, target: Path) -> Path:
    """A folder with the packages sglang and flashinfer as in that version; returns it."""
    for path in sorted((FIXTURES / version).rglob("*")):
        if path.is_file():
            place = target / str(path.relative_to(FIXTURES / version)).removesuffix(".txt")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return target


def small_package(root: Path, files: dict[str, str]) -> Path:
    """A package folder from texts by relative path."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
