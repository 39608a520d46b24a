"""Machine paths become placeholders: a report is passed on, and a path of one machine helps nobody elsewhere."""

import re
import sys
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from runner.records.paths import StudyPaths
from runner.records.schema import LaunchRecord

MEANINGS = {
    "$STUDY": "the study's folder (mlruns/studies/NAME)",
    "$MLRUNS": "the results root (mlruns)",
    "$REPO": "the checkout of this program",
    "$ENGINE_PYTHON": "the engine's interpreter (engine.python)",
    "$MODEL": "the model's folder (model.path)",
    "$HOME": "your home folder",
    "$TMP": "the folder for temporary files",
    "$PATH_TO": "a folder of the machine that measured",
}
# An absolute path of two or more parts that starts at a word border; closing tags (`</b>`), URLs and relative paths do not match.
_ABSOLUTE = re.compile(r"(?<![\w<.:/$}%&;=-])((?:/[\w.@+~-]+){2,})|(?<==)((?:/[\w.@+~-]+){2,})")
_VIRTUAL = ("/proc/", "/sys/", "/dev/")
_ROUTES = ("/v1/", "/api/")


class Placeholders:
    """Replaces known folders by their names, and what is left of an absolute path by `$PATH_TO/last part`."""

    def __init__(self, study: StudyPaths, launches: Iterable[LaunchRecord]) -> None:
        known: dict[str, str] = {}
        for record in launches:
            argv = record.command.argv
            if argv and argv[0].startswith("/"):
                known.setdefault(argv[0], "$ENGINE_PYTHON")
            for name, value in pairwise(argv):
                if name in ("--model-path", "--model", "--tokenizer-path") and value.startswith("/"):
                    known.setdefault(value.rstrip("/"), "$MODEL")
        for folder in {study.folder, study.folder.absolute(), study.folder.resolve()}:
            known[str(folder)] = "$STUDY"
            if folder.is_absolute():
                known.setdefault(str(folder.parent.parent), "$MLRUNS")
        here = Path(__file__).resolve().parents[2]
        known.setdefault(str(here), "$REPO")
        known.setdefault(sys.prefix, "$REPO/.venv")
        known.setdefault(str(Path.home()), "$HOME")
        known.setdefault(tempfile.gettempdir(), "$TMP")
        self._known = sorted(((path, name) for path, name in known.items() if len(path) > 2), key=lambda item: -len(item[0]))

    def hide(self, text: str) -> str:
        """`text` without machine paths. Applied twice it changes nothing more."""
        for path, name in self._known:
            text = re.sub(rf"(?<![\w.$-]){re.escape(path)}(?![\w.-])", name.replace("\\", r"\\"), text)
        return _ABSOLUTE.sub(_last_part, text)


def _last_part(found: re.Match[str]) -> str:
    path = found.group(0)
    if path.startswith(_VIRTUAL) or path.startswith(_ROUTES):
        return path
    return f"$PATH_TO/{path.rsplit('/', 1)[1]}"
