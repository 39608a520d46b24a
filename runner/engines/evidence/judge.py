"""Was one factor's level in force in one launch? requested -> resolved -> observed (design section 6).

Grades: `observed` (a line, metric, probe or kernel of the running server says that it works), `resolved` (the server's own arguments
say that it is meant to), `contradicted` (something says that it is not in force, or a line is missing that this version prints
whenever it is).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from runner.engines.evidence.markers import Found, find, kind_of, readable
from runner.engines.evidence.sources import Sources
from runner.errors import UserError
from runner.records.schema import Evidence, Grade
from runner.spec.factor import EvidenceRule, FactorSpec, Marker

# /server_info fields whose name is not the option's.
_FIELDS = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
}


def judge_evidence(factor: FactorSpec, level: str, sources: Sources, engine_version: str) -> Evidence:
    """The grade of `level` and its proof. `engine_version` may be '' (not known): then every version's markers are tried, but no
    missing line counts. Raises UserError for a rule outside the grammar."""
    return _judge(factor, level, sources, engine_version, _chosen_note(factor, sources, engine_version))


def _judge(factor: FactorSpec, level: str, sources: Sources, engine_version: str, note: str) -> Evidence:
    rules = [rule for rule in factor.evidence if _applies(rule, factor, level, engine_version)]
    found = _first("contradicted", rules, sources)
    if found is not None:
        return _evidence(factor, level, "contradicted", found, note)
    found = _first("observed", rules, sources)
    if found is not None:
        return _evidence(factor, level, "observed", found)
    found = _missing(rules, sources, engine_version)
    if found is not None:
        return _evidence(factor, level, "contradicted", found, note)
    if level == factor.reference_level:
        chosen = engine_choice(factor, sources, engine_version)
        if chosen is not None:
            return _evidence(factor, level, "contradicted", chosen[1], _worth(factor, chosen[0], sources, engine_version))
    stated = _first("resolved", rules, sources)
    if stated is not None:
        return _evidence(factor, level, "resolved", stated)
    grade, found = _arguments(factor, level, sources, engine_version)
    return _evidence(factor, level, grade, found)


def engine_chose(
    factors: Mapping[str, FactorSpec], levels: Mapping[str, str], sources: Sources, engine_version: str
) -> tuple[Evidence, ...]:
    """Factors that the engine switched on by itself although the arm did not ask (level absent or the reference level): the level
    that it chose, whether that works, and all three said in the proof (asked, resolved, observed)."""
    chosen: list[Evidence] = []
    for name, factor in factors.items():
        if levels.get(name, factor.reference_level) != factor.reference_level:
            continue
        choice = engine_choice(factor, sources, engine_version)
        if choice is None:
            continue
        level, found = choice
        judged = _judge(factor, level, sources, engine_version, note="")
        proof = f"asked for by nobody; resolved to `{level}` by the engine ({found.proof}); {judged.grade}: {judged.proof}"
        chosen.append(judged.model_copy(update={"factor": factor.name or name, "proof": proof}))
    return tuple(chosen)


def engine_choice(factor: FactorSpec, sources: Sources, engine_version: str) -> tuple[str, Found] | None:
    """The level that the engine chose by itself and where it says so, or None. Read from `engine_chose` markers and from the
    overrides that newer versions list in /server_info."""
    rules = [rule for rule in factor.evidence if _version_applies(rule, engine_version)]
    if _first("engine_withdrew", rules, sources) is not None:
        return None
    found = _first("engine_chose", rules, sources)
    override = _override(factor, sources)
    if found is None and override is None:
        return None
    level = _level_of(factor, override[0] if override else None, sources, engine_version)
    return level, found or Found(override[1] if override else "", "server_info")


def effective_options(factor: FactorSpec, level: str, engine_version: str) -> dict[str, Any]:
    """The engine options that a level sets in this version (names as in the factor file)."""
    spec = factor.levels.get(level)
    if spec is None:
        return {factor.value_option: level} if factor.value_option else {}
    options = dict(spec.options)
    for variant in spec.variants:
        if engine_version and _in(engine_version, variant.engine):
            options = dict(variant.options)
            break
    return options or ({factor.value_option: level} if factor.value_option else {})


def field_of(option: str) -> str:
    """The name under which /server_info shows an engine option."""
    name = option.lstrip("-").replace("-", "_")
    return _FIELDS.get(name, name)


def _applies(rule: EvidenceRule, factor: FactorSpec, level: str, version: str) -> bool:
    wanted = level != factor.reference_level if rule.levels is None else level in rule.levels
    return wanted and _version_applies(rule, version)


def _version_applies(rule: EvidenceRule, version: str) -> bool:
    return not version or _in(version, rule.engine)


def _in(version: str, specifiers: str) -> bool:
    try:
        return SpecifierSet(specifiers).contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        raise UserError(f"evidence: {specifiers!r} is not a set of versions; write it like >=0.5.9,<0.5.14") from None
    except InvalidVersion:
        # A development build without a version: only rules without an upper limit speak for it.
        return "<" not in specifiers and "==" not in specifiers


def markers_of(rule: EvidenceRule, role: str) -> tuple[Marker, ...]:
    """The markers of one role (`observed`, `contradicted`, `resolved`, `expected`, `engine_chose`) as a tuple."""
    value = getattr(rule, role)
    return value if isinstance(value, tuple) else (value,)


def _first(role: str, rules: Iterable[EvidenceRule], sources: Sources) -> Found | None:
    for rule in rules:
        for marker in markers_of(rule, role):
            if kind_of(marker)[0] == "debug_log" and not sources.shows_debug and role != "observed":
                continue
            found = find(marker, sources)
            if found is not None:
                return found
    return None


def _missing(rules: Iterable[EvidenceRule], sources: Sources, version: str) -> Found | None:
    """A line that this version prints whenever the level is in force, and that is not there although the server got ready."""
    if not version:
        return None
    for rule in rules:
        wanted = markers_of(rule, "expected")
        read = [marker for marker in wanted if readable(marker, sources) and (kind_of(marker)[0] == "trace" or sources.reached_ready)]
        if wanted and len(read) == len(wanted) and not any(find(marker, sources) for marker in read):
            kind, text = kind_of(read[0])
            return Found(f"{version} says `{text}` ({kind}) whenever this level is in force, and it is not there", kind)
    return None


def _arguments(factor: FactorSpec, level: str, sources: Sources, version: str) -> tuple[Grade, Found]:
    """What the server's own arguments say about the options that the level sets, or must not have (reference level)."""
    shown = sources.resolved
    if shown is None:
        return "resolved", Found("requested; nothing that was read shows it", "log")
    wanted = effective_options(factor, level, version)
    proofs: list[str] = []
    for option, value in wanted.items():
        field, actual = _shown_value(shown, option)
        if field is None:
            continue
        if not _same(actual, value):
            return "contradicted", Found(f"{sources.resolved_from}: {field} = {actual!r}, asked for {value!r}", "server_info")
        proofs.append(f"{field} = {actual!r}")
    for option, value in _options_of_others(factor, level, version):
        if option in wanted:
            continue
        field, actual = _shown_value(shown, option)
        if field is None:
            continue
        # A choice such as a backend is resolved by the engine when nothing is asked; only a switch that is on contradicts.
        if actual is True and _same(actual, value):
            return "contradicted", Found(f"{sources.resolved_from}: {field} = {actual!r}, which this level does not ask for", "server_info")
        proofs.append(f"{field} = {actual!r}")
    if proofs:
        return "resolved", Found(f"{sources.resolved_from}: {', '.join(dict.fromkeys(proofs))}", "server_info")
    return "resolved", Found("requested (set in the environment or the source); this version shows it nowhere", "log")


def _options_of_others(factor: FactorSpec, level: str, version: str) -> list[tuple[str, Any]]:
    return [pair for other in factor.levels if other != level for pair in effective_options(factor, other, version).items()]


def _shown_value(shown: Mapping[str, Any], option: str) -> tuple[str | None, Any]:
    state = shown.get("internal_states")
    inner = state[0] if isinstance(state, list) and state and isinstance(state[0], Mapping) else {}
    for field in (field_of(option), option.lstrip("-").replace("-", "_")):
        # The scheduler's own view knows what the model changed later; the parent's is what was asked.
        if field in inner and inner[field] != shown.get(field) and inner[field] is not None:
            return f"internal_states.0.{field}", inner[field]
        if field in shown:
            return field, shown[field]
    return None, None


def _same(actual: Any, wanted: Any) -> bool:
    if actual == wanted and isinstance(actual, bool) == isinstance(wanted, bool):
        return True
    if wanted is None or wanted is False:
        return actual in (None, False)
    return str(actual).lower() == str(wanted).lower()


def _override(factor: FactorSpec, sources: Sources) -> tuple[Any, str] | None:
    """(value, proof) of an override that the engine lists among its own decisions for an option of this factor."""
    info = sources.server_info or {}
    states = info.get("internal_states")
    inner = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    overrides = inner.get("_resolved_overrides") or info.get("_resolved_overrides") or []
    fields = {option.lstrip("-").replace("-", "_") for level in factor.levels for option in factor.levels[level].options}
    fields |= {option.replace("-", "_") for level in factor.levels.values() for variant in level.variants for option in variant.options}
    for entry in overrides:
        if not (isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[1], Mapping)):
            continue
        name, values = entry
        for field, value in values.items():
            # Only decisions that switch something on; defaults of page sizes and the like are not treatments.
            if field in fields and value not in (None, False) and "auto_enable" in str(name):
                return value, f"server_info: {name} set {field} = {value!r}"
    return None


def _level_of(factor: FactorSpec, value: Any, sources: Sources, version: str) -> str:
    """The level whose options the server shows, else the level of that name, else the first that is not the reference."""
    others = [name for name in factor.levels if name != factor.reference_level]
    if value is not None and str(value) in others:
        return str(value)
    shown = sources.resolved or {}
    for name in others:
        options = effective_options(factor, name, version)
        if options and all(_same(_shown_value(shown, option)[1], wanted) for option, wanted in options.items()):
            return name
    return others[0] if others else factor.reference_level


def _chosen_note(factor: FactorSpec, sources: Sources, version: str) -> str:
    """Says that nobody asked, where the log or /server_info tells that the engine chose."""
    chosen = engine_choice(factor, sources, version)
    return f"asked for by nobody, resolved to `{chosen[0]}` by the engine ({chosen[1].proof})" if chosen else ""


def _worth(factor: FactorSpec, level: str, sources: Sources, version: str) -> str:
    if level == factor.reference_level:
        return ""
    rules = [rule for rule in factor.evidence if _applies(rule, factor, level, version)]
    against = _first("contradicted", rules, sources) or _missing(rules, sources, version)
    head = f"asked for by nobody, resolved to `{level}` by the engine"
    return f"{head}, and contradicted: {against.proof}" if against else head


def _evidence(factor: FactorSpec, level: str, grade: Grade, found: Found, note: str = "") -> Evidence:
    proof = f"{found.proof}; {note}" if note else found.proof
    source = "none" if found.proof.startswith("requested") else found.source
    return Evidence(factor=factor.name, level=level, grade=grade, proof=proof, source=source, line=found.line)
