"""For every marker in every factor file: the log, body, probe, metric or profile that has it gives its grade, the opposite flips it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from runner.config import load_factor
from runner.engines.evidence import Sources, engine_chose, judge_evidence
from runner.engines.evidence.judge import effective_options, field_of, markers_of
from runner.engines.evidence.markers import find, kind_of, parse
from runner.spec.factor import EvidenceRule, FactorSpec, Marker

CONF = Path(__file__).parent.parent.parent.parent / "conf"
VERSIONS = sorted([f"0.5.{minor}" for minor in range(9, 24)] + ["0.5.13.post1", "0.5.15.post1"], key=Version)
READY = "[2026-01-01 00:00:09] The server is fired up and ready to roll!\n"
START = "[2026-01-01 00:00:00] Init torch distributed begin.\n"


@dataclass(frozen=True)
class Case:
    factor: FactorSpec
    rule: EvidenceRule
    role: str
    marker: Marker
    level: str
    version: str

    def __str__(self) -> str:
        kind, text = kind_of(self.marker)
        return f"{self.factor.name}-{self.level}-{self.version}-{self.role}-{kind}-{text[:40]}"


def factors() -> list[FactorSpec]:
    return [
        FactorSpec.model_validate({"name": path.stem, **load_factor(path.stem, [CONF])})
        for path in sorted((CONF / "factor").glob("*.yaml"))
    ]


def cases() -> list[Case]:
    found = []
    for factor in factors():
        for rule in factor.evidence:
            versions = [version for version in VERSIONS if SpecifierSet(rule.engine).contains(version, prereleases=True)]
            levels = rule.levels or tuple(level for level in factor.levels if level != factor.reference_level)
            for role in ("observed", "contradicted", "resolved", "expected", "engine_chose"):
                for marker in markers_of(rule, role):
                    # The first and the last version that a rule speaks for, and 9 where it speaks only for versions to come.
                    for version in dict.fromkeys((versions[0], versions[-1])) if versions else ("0.5.99",):
                        found += [Case(factor, rule, role, marker, level, version) for level in levels]
    return found


CASES = cases()


def body_with(path: str, value: Any) -> dict[str, Any]:
    """A JSON body in which `path` is `value`."""
    body: Any = value
    for part in reversed(path.split(".")):
        body = [body] if part == "0" else {part: body}
    assert isinstance(body, dict)
    return body


def values_of(text: str) -> tuple[str, Any, Any]:
    """(path, a value for which the marker matches, a value for which it does not)."""
    words = text.split(None, 2)
    if words[0] == "not":
        return words[1], False, True
    if len(words) == 1:
        return words[0], True, False
    path, operator, right = words
    if operator == "in":
        return path, right.strip("[]").split(",")[0].strip(), "another"
    plain: Any = {"true": True, "false": False, "null": None}.get(right, right)
    if isinstance(plain, str) and plain.replace(".", "", 1).lstrip("-").isdigit():
        plain = float(plain) if "." in plain else int(plain)
    other: Any = (not plain) if isinstance(plain, bool) else "another" if isinstance(plain, str) or plain is None else plain + 1
    return (path, plain, other) if operator == "==" else (path, other, plain)


def sources_for(case: Case, present: bool) -> Sources:
    """A launch that got ready and in which nothing else speaks against the level; the marker is there, or its opposite."""
    lines, traces, info = [START], ["void cutlass_gemm"], dict[str, Any]()
    for option, value in effective_options(case.factor, case.level, case.version).items():
        if value is not None:
            info[field_of(option)] = value
    same_kind = [rule for rule in case.factor.evidence if rule is not case.rule or case.role == "contradicted"]
    for rule in same_kind:
        speaks = (rule.levels is None and case.level != case.factor.reference_level) or case.level in (rule.levels or ())
        if not (speaks and SpecifierSet(rule.engine).contains(case.version, prereleases=True)):
            continue
        # Lines that the version always prints are there unless they are what is tested, so that only the marker decides.
        for marker in markers_of(rule, "expected") if case.role == "contradicted" else ():
            kind, text = kind_of(marker)
            (traces if kind == "trace" else lines).append(text if kind == "trace" else f"[2026-01-01 00:00:01 TP0] {text}\n")
    kind, text = kind_of(case.marker)
    probe: dict[str, Any] | None = None
    metrics = None
    if kind in {"log", "debug_log"}:
        lines = [line for line in lines if text not in line]
        if present:
            lines.append(f"[2026-01-01 00:00:01 TP0] {text} and so on\n")
    elif kind == "trace":
        traces = [name for name in traces if text not in name]
        if present:
            traces.append(f"void some_{text}kernel")
    elif kind == "metrics":
        metrics = f"{text.split()[0]} {1 if present else 0}\n"
    else:
        path, matching, opposite = values_of(text)
        body = body_with(path, matching if present else opposite)
        if kind == "probe":
            probe = body
        else:
            info |= body
    return Sources(
        log="".join([*lines, READY]),
        debug=True,
        server_info=info,
        metrics=metrics,
        probe=probe,
        trace=tuple(traces) if kind == "trace" else None,
    )


def test_every_factor_file_is_read() -> None:
    assert len(factors()) >= 16
    assert len(CASES) > 100


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_marker_is_in_the_grammar_and_flips(case: Case) -> None:
    parse(case.marker)
    assert find(case.marker, sources_for(case, present=True)) is not None
    assert find(case.marker, sources_for(case, present=False)) is None


@pytest.mark.parametrize("case", [case for case in CASES if case.role in {"observed", "contradicted"}], ids=str)
def test_the_marker_decides_the_grade_and_its_opposite_flips_it(case: Case) -> None:
    with_it, without = sources_for(case, present=True), sources_for(case, present=False)
    found = judge_evidence(case.factor, case.level, with_it, case.version)
    assert found.grade == case.role, found
    assert found.proof
    if found.source in {"log", "debug_log"}:
        assert found.line is not None
        assert with_it.log.splitlines()[found.line - 1].strip() == found.proof.split("; asked for")[0]
    assert judge_evidence(case.factor, case.level, without, case.version).grade != case.role


@pytest.mark.parametrize("case", [case for case in CASES if case.role == "resolved"], ids=str)
def test_arguments_that_say_the_opposite_contradict(case: Case) -> None:
    bare = dataclasses.replace(
        case, factor=case.factor.model_copy(update={"evidence": (case.rule.model_copy(update={"observed": (), "expected": ()}),)})
    )
    found = judge_evidence(bare.factor, case.level, sources_for(bare, present=True), case.version)
    assert found.grade == "resolved", found
    if kind_of(case.marker)[0] == "server_info":
        assert judge_evidence(case.factor, case.level, sources_for(case, present=False), case.version).grade == "contradicted"


@pytest.mark.parametrize("case", [case for case in CASES if case.role == "expected"], ids=str)
def test_a_missing_line_contradicts_only_where_it_had_to_be(case: Case) -> None:
    missing = sources_for(case, present=False)
    found = judge_evidence(case.factor, case.level, missing, case.version)
    assert found.grade == "contradicted", found
    assert case.version in found.proof
    kind, _ = kind_of(case.marker)
    if kind != "trace":
        not_ready = dataclasses.replace(missing, log=missing.log.replace(READY, ""))
        assert judge_evidence(case.factor, case.level, not_ready, case.version).grade != "contradicted"
    if kind == "debug_log":
        quiet = dataclasses.replace(missing, debug=False)
        assert judge_evidence(case.factor, case.level, quiet, case.version).grade != "contradicted"
    assert judge_evidence(case.factor, case.level, missing, "0.6.0").grade != "contradicted" or kind == "trace", "a version nobody read"
    assert judge_evidence(case.factor, case.level, missing, "").grade != "contradicted", "an unknown version"


@pytest.mark.parametrize("case", [case for case in CASES if case.role == "engine_chose"], ids=str)
def test_the_engines_own_choice_contradicts_the_reference_level(case: Case) -> None:
    with_it, without = sources_for(case, present=True), sources_for(case, present=False)
    named = {case.factor.name: case.factor}
    assert [chosen.factor for chosen in engine_chose(named, {}, with_it, case.version)] == [case.factor.name]
    assert engine_chose(named, {}, without, case.version) == ()
    reference = case.factor.reference_level
    bare = dataclasses.replace(with_it, server_info={})
    assert judge_evidence(case.factor, reference, bare, case.version).grade == "contradicted"
    assert judge_evidence(case.factor, reference, dataclasses.replace(without, server_info={}), case.version).grade == "resolved"
