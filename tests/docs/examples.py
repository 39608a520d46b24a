"""Worked examples of the documents: a fenced block after a line `<!-- example: NAME -->`, exactly as it stands."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^<!-- example: (?P<name>\S+) -->\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(document: str) -> dict[str, str]:
    """Name -> text of every worked example in a document of the repository."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = [(match["name"], match["text"]) for match in _BLOCK.finditer(text)]
    names = [name for name, _ in found]
    assert len(names) == text.count("<!-- example: "), f"{document}: an example is not followed by a fenced block"
    assert len(set(names)) == len(names), f"{document}: two examples have one name"
    return dict(found)


def write(document: str, folder: Path, *names: str) -> Path:
    """Writes these examples below `folder` by their names, and returns `folder`."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(examples(document)[name], encoding="utf-8")
    return folder
