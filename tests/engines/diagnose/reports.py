"""Reads the two collections of failure reports into one shape."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
CONFIDENT = 0.5


@dataclass(frozen=True)
class Report:
    """One report: `kind` is its class, `also` are acceptable, `never` would cost the user hours when said with confidence."""

    name: str
    kind: str
    log: str
    also: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)
    decisive: str = ""
    held_out: bool = False

    def accepts(self, kind: str) -> bool:
        return kind == self.kind or kind in self.also


def field_reports() -> list[Report]:
    """The 24 adapted public reports. A third (by hash of the name) was kept out while the rules were written."""
    reports = []
    for line in (FIXTURES / "field/cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        name = Path(case["file"]).name
        reports.append(
            Report(
                name=name,
                kind=case["true_class"],
                log=(FIXTURES / "field" / case["file"]).read_text(),
                also=tuple(case["also_acceptable"]),
                never=tuple(case["must_not_be"]),
                context=case["context_outside_log"] or {},
                decisive=case["decisive_line"],
                held_out=int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0,
            )
        )
    return reports


def own_reports(name: str = "reports") -> list[Report]:
    """The reports of one file of `fixtures/reports`."""
    text = (FIXTURES / "reports" / f"{name}.txt").read_text()
    reports = []
    for section in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, _, log = section.partition("\n")
        name, kind, *rest = (part.strip() for part in head.split(" | "))
        options = dict(part.split(":", 1) for part in rest)
        reports.append(
            Report(
                name=name,
                kind=kind,
                log=log.strip("\n") + "\n",
                also=_names(options.get("also", "")),
                never=_names(options.get("never", "")),
                context=json.loads(options.get("context", "{}")),
            )
        )
    return reports


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
