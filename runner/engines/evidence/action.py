"""`action=evidence`: files in, one JSON object out."""

import json
from pathlib import Path
from typing import Any

from runner.engines.evidence.judge import engine_choice, judge_evidence
from runner.engines.evidence.sources import Sources
from runner.errors import UserError, instead
from runner.spec.factor import FactorSpec


def evidence_files(
    factor: FactorSpec,
    level: str,
    log: Path | None,
    server_info: Path | None,
    probe: Path | None = None,
    metrics: Path | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    """Grade and proof of `level` from files. Keys: grade, factor, level, proof, source, line, version, engine_chose.

    The engine's version is read from /server_info, else from the probe, else `version`. Raises UserError for a level that the
    factor does not have and for files that are missing or are not what they should be.
    """
    if level not in factor.levels and factor.value_rule is None:
        raise UserError(f"level={level!r} is no level of factor {factor.name}{instead(level, factor.levels)}")
    sources = Sources(
        log=_text(log, "log"),
        server_info=_body(server_info, "server_info"),
        probe=_body(probe, "probe"),
        metrics=_text(metrics, "metrics") if metrics is not None else None,
    )
    if not sources.log.strip() and sources.server_info is None:
        raise UserError("nothing to judge by: the log is empty and there is no server_info=FILE")
    known = str((sources.server_info or {}).get("version") or (sources.probe or {}).get("engine_version") or version or "")
    judged = judge_evidence(factor, level, sources, known)
    chosen = engine_choice(factor, sources, known)
    return {
        "grade": judged.grade,
        "factor": judged.factor,
        "level": judged.level,
        "proof": judged.proof,
        "source": judged.source,
        "line": judged.line,
        "version": known,
        "engine_chose": chosen[0] if chosen else None,
    }


def _text(path: Path | None, key: str) -> str:
    if path is None:
        return ""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise UserError(f"{key}={path}: {problem.strerror or problem}; give the path of a readable file") from None
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{key}={path} is a binary file, not text")
    return data.decode("utf-8", errors="replace")


def _body(path: Path | None, key: str) -> dict[str, Any] | None:
    if path is None:
        return None
    text = _text(path, key)
    source = "save the body of GET /server_info" if key == "server_info" else "give the probe's report"
    try:
        # curl adds "200 application/json" behind a body when it was asked to; the first JSON value counts.
        body, _ = json.JSONDecoder().raw_decode(text.strip())
    except json.JSONDecodeError as problem:
        raise UserError(f"{key}={path} is not JSON ({problem.msg} at line {problem.lineno}); {source}") from None
    if not isinstance(body, dict):
        raise UserError(f"{key}={path} holds {type(body).__name__}, not a JSON object")
    return body
