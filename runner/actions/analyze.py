"""`action=analyze records=PATH`: judges launch records in the documented schema, other people's too. One look. JSON."""

import json
from pathlib import Path

from runner.config import Settings
from runner.errors import UserError


def perform(settings: Settings, overrides: list[str]) -> int:
    from runner.analysis.elsewhere import analyze_records

    if settings.records is None:
        raise UserError("action=analyze needs records=PATH: a JSON-lines file of launch records, a journal, or a study's folder")
    path = Path(settings.records)
    if path.is_dir() and not (path / "journal.jsonl").is_file():
        raise UserError(f"records={settings.records} is no study's folder: it holds no journal.jsonl")
    path = path / "journal.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"records={settings.records}: there is no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"records={settings.records} cannot be read as text: {problem}") from None
    decision = analyze_records(text, settings.protocol)
    print(json.dumps(decision.model_dump(mode="json", by_alias=True)))
    return 0
