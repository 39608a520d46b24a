"""Cells become arms: refused ones are set apart, equal ones merge; by the rules first, then by what the installed engine says."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.engines.base import argv_of
from runner.engines.resolve import Resolution, ResolveRequest
from runner.errors import UserError
from runner.planning.candidates import EXPECTED_REFUSAL, Candidate, RuleBook
from runner.planning.cells import Levels
from runner.records.plan import Arm, Cell
from runner.spec.model import ModelSpec

Resolve = Callable[[list[ResolveRequest]], list[Resolution]]
BASELINE = "baseline"
# Kinds of Resolution that are the engine's considered refusal; others (timeout, a model that is not there) say nothing about the arm.
REFUSALS = frozenset(
    {
        "unknown_cli_option",
        "invalid_option_value",
        "rejected_argument_combination",
        "unsupported_model",
        "unsupported_gpu_architecture",
        "quantization_error",
    }
)
# What two launches of one configuration may differ in.
VOLATILE = frozenset({"port", "nccl_port", "host", "random_seed", "launch_command", "startup_time", "model_path", "tokenizer_path"})


@dataclass
class _Group:
    """Cells that launch the same thing; the first member stands for all."""

    members: list[Candidate]
    resolution: Resolution | None = None
    same_as: "_Group | None" = None
    why_same: str = ""
    name: str = ""

    @property
    def head(self) -> Candidate:
        return self.members[0]


@dataclass(frozen=True)
class Merged:
    """Cells with their status, arms (the baseline first), and what is not certain about them."""

    cells: tuple[Cell, ...]
    arms: tuple[Arm, ...]
    unconfirmed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resolved_seconds: float = 0.0


@dataclass
class _Answers:
    """What the engine said: per group index and per set of rule refusals."""

    groups: dict[int, Resolution] = field(default_factory=dict)
    refused: dict[tuple[str, ...], Resolution] = field(default_factory=dict)


def merge(cells: Sequence[Levels], baseline: Levels, book: RuleBook, resolve: Resolve | None = None) -> Merged:
    """Raises UserError when the baseline itself is refused, by a rule or by the engine."""
    candidates = [book.candidate(levels) for levels in cells]
    unconfirmed = list(book.unconfirmed)
    alive: list[Candidate] = []
    refused: list[Candidate] = []
    for candidate in candidates:
        hard = candidate.refusals or (candidate.soft if resolve is None and book.settings.protocol.trust_rules else ())
        (refused if hard else alive).append(candidate)
    _baseline_must_serve(baseline, refused)
    groups = _grouped(alive, baseline)
    answers = _ask(groups, refused, book, resolve)
    _apply(groups, answers, book, unconfirmed)
    seconds = sum(answer.seconds for answer in (*answers.groups.values(), *answers.refused.values()))
    base = groups[0]
    if base.resolution is not None and not base.resolution.ok and base.resolution.kind in REFUSALS:
        raise UserError(f"the engine refuses the baseline: {base.resolution.error}; see {_asked(base.head, book)}")
    arms, names = _arms(groups, book)
    found: dict[int, Cell] = {}
    for group in groups:
        for candidate in group.members:
            found[id(candidate)] = _cell(candidate, group, book)
    for candidate in refused:
        found[id(candidate)] = _refused_cell(candidate, answers.refused)
    for candidate in candidates:
        unconfirmed += [
            f"{refusal} (rule not confirmed for {book.version})" for refusal in candidate.soft if refusal.factor in book.outside
        ]
    return Merged(tuple(found[id(c)] for c in candidates), arms, tuple(dict.fromkeys(unconfirmed)), tuple(names), seconds)


def _baseline_must_serve(baseline: Levels, refused: Sequence[Candidate]) -> None:
    for candidate in refused:
        if candidate.levels == baseline:
            why = "; ".join(map(str, candidate.refusals or candidate.soft))
            raise UserError(f"the baseline cannot be launched here: {why}; choose other levels under baseline:")


def _grouped(alive: Sequence[Candidate], baseline: Levels) -> list[_Group]:
    """Groups by key, the baseline's first; in each, the baseline's cell or one that is its own canonical form stands in front."""
    by_key: dict[str, list[Candidate]] = {}
    for candidate in alive:
        by_key.setdefault(candidate.key, []).append(candidate)
    groups = []
    for members in by_key.values():
        front = next((c for c in members if c.levels == baseline), None) or next((c for c in members if not c.reasons), members[0])
        groups.append(_Group([front, *(c for c in members if c is not front)]))
    groups.sort(key=lambda group: group.head.levels != baseline)
    return groups


def model_path(model: ModelSpec) -> str:
    """Where the model lies; one without a path is made into models/NAME."""
    return model.path or f"models/{model.name}"


def _request(key: str, candidate: Candidate, book: RuleBook) -> ResolveRequest:
    options = {"model-path": model_path(book.settings.model), **candidate.effective.options}
    return ResolveRequest(key=key, argv=tuple(argv_of(options)), env=candidate.effective.env)


def _ask(groups: Sequence[_Group], refused: Sequence[Candidate], book: RuleBook, resolve: Resolve | None) -> _Answers:
    """One request a group, and one a distinct reason of the rules, so that the engine's own words stand beside the rule's."""
    answers = _Answers()
    if resolve is None:
        return answers
    requests = [_request(f"g{index}", group.head, book) for index, group in enumerate(groups)]
    reasons: dict[tuple[str, ...], str] = {}
    for candidate in refused:
        why = tuple(map(str, candidate.refusals))
        if why not in reasons and not candidate.effective.clashes:
            reasons[why] = f"r{len(reasons)}"
            requests.append(_request(reasons[why], candidate, book))
    by_key = {resolution.key: resolution for resolution in resolve(requests)}
    answers.groups = {index: by_key[f"g{index}"] for index in range(len(groups)) if f"g{index}" in by_key}
    answers.refused = {why: by_key[key] for why, key in reasons.items() if key in by_key}
    return answers


def _apply(groups: Sequence[_Group], answers: _Answers, book: RuleBook, unconfirmed: list[str]) -> None:
    """Takes the engine's word: refusals, and groups that resolve to one configuration."""
    first: dict[str, _Group] = {}
    blind = False
    for index, group in enumerate(groups):
        resolution = group.resolution = answers.groups.get(index)
        if resolution is None:
            continue
        if not resolution.ok:
            if resolution.kind not in REFUSALS:
                unconfirmed.append(f"{_text(group.head.levels)}: not resolved ({resolution.kind}: {resolution.error})")
            continue
        confirmed = resolution.capability_confirmed or book.settings.node.gpus == 0
        blind = blind or not confirmed
        configuration = _configuration(group.head, resolution, book)
        twin = first.setdefault(configuration, group)
        if twin is group:
            continue
        if confirmed:
            group.same_as, group.why_same = twin, "resolves to the same engine configuration"
        else:
            unconfirmed.append(f"{_text(group.head.levels)} resolves like {_text(twin.head.levels)}, but not on this node's GPUs")
    if blind:
        node = book.settings.node
        unconfirmed.append(f"resolved without a GPU of capability {node.capability}: what the engine chooses by architecture is open")


def _configuration(candidate: Candidate, resolution: Resolution, book: RuleBook) -> str:
    resolved = {name: value for name, value in resolution.resolved.items() if name not in VOLATILE}
    _, env, patches = json.loads(candidate.key)
    return json.dumps([resolved, env, patches], sort_keys=True, default=str)


def _arms(groups: Sequence[_Group], book: RuleBook) -> tuple[tuple[Arm, ...], list[str]]:
    base = groups[0].head
    arms: list[Arm] = []
    taken: set[str] = set()
    notes: list[str] = []
    for group in groups:
        if group.same_as is not None or (group.resolution and not group.resolution.ok and group.resolution.kind in REFUSALS):
            continue
        head = group.head
        group.name = BASELINE if group is groups[0] else _unique(arm_name(head.canonical, base.canonical), taken)
        taken.add(group.name)
        resolution = group.resolution if group.resolution and group.resolution.ok else None
        bundles = [f"{n}={lv}" for n, lv in head.canonical.items() if book.plans[n, lv].bundle]
        arms.append(
            Arm(
                name=group.name,
                levels=head.canonical,
                options=head.effective.options,
                env=head.effective.env,
                patches=head.effective.patches,
                configuration_hash=configuration_hash(
                    str(book.version), head.effective.options, head.effective.env, head.effective.patches
                ),
                resolved=resolution.resolved if resolution else {},
                resolved_by="engine" if resolution else "rules",
                notes=(
                    *(f"{bundle} sets more than the flag itself and is judged as a bundle" for bundle in bundles),
                    *(resolution.notes if resolution else ()),
                ),
                expect=(
                    *book.expectations(head.canonical, head.effective.options, base.canonical),
                    *(f"{EXPECTED_REFUSAL}: {refusal}" for refusal in head.soft),
                ),
            )
        )
    return tuple(arms), notes


def arm_name(levels: Mapping[str, str], baseline: Mapping[str, str]) -> str:
    """`mscclpp=on+mscclpp_max_bytes=1MB`: the levels that differ from the baseline's, in the grid's order."""
    return "+".join(f"{name}={level}" for name, level in levels.items() if baseline.get(name) != level) or "same-levels"


def _unique(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate in taken or candidate == BASELINE:
        candidate, number = f"{name}-{number}", number + 1
    return candidate


def configuration_hash(version: str, options: Mapping[str, Any], env: Mapping[str, str], patches: Sequence[str]) -> str:
    """16 hex digits over everything that a launch gets beyond host, port and paths."""
    text = json.dumps([version, dict(options), dict(env), list(patches)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cell(candidate: Candidate, group: _Group, book: RuleBook) -> Cell:
    resolution = group.resolution
    if resolution is not None and not resolution.ok and resolution.kind in REFUSALS:
        return Cell(
            levels=candidate.levels,
            status="REJECTED",
            refused_at="resolve",
            reason="; ".join([f"the engine refuses it ({resolution.kind})", *map(str, candidate.soft)]),
            sentence=resolution.error,
        )
    owner = group.same_as or group
    if candidate is owner.head:
        return Cell(levels=candidate.levels, status="ARM", arm=owner.name, reason="; ".join(candidate.reasons))
    why = candidate.reasons or _limit_reasons(candidate, group.head, book) or group.head.reasons
    if not why:
        why = (group.why_same or "sets the same options, variables and patches",)
    return Cell(levels=candidate.levels, status="DUPLICATE", arm=owner.name, reason=f"{'; '.join(why)}; same arm as {owner.name}")


def _limit_reasons(candidate: Candidate, head: Candidate, book: RuleBook) -> tuple[str, ...]:
    """Why two size limits are one: no measured message lies between them."""
    reasons = []
    for name, found in candidate.limits.items():
        mine, other = candidate.levels[name], head.levels.get(name)
        if other is None or other == mine:
            continue
        low, high = sorted((mine, other), key=lambda level: book.plans[name, level].value)
        row = book.settings.model.hidden_size * book.settings.model.dtype_bytes
        reasons.append(
            f"no measured batch falls between {low} and {high} (largest captured one: {found.rows} rows x {row:,} B = {found.largest:,} B)"
        )
    return tuple(reasons)


def _refused_cell(candidate: Candidate, answers: Mapping[tuple[str, ...], Resolution]) -> Cell:
    refusals = candidate.refusals or candidate.soft
    answer = answers.get(tuple(map(str, candidate.refusals)))
    own = answer is not None and not answer.ok and answer.kind in REFUSALS
    known = "; ".join(dict.fromkeys(refusal.sentence for refusal in refusals if refusal.sentence))
    return Cell(
        levels=candidate.levels,
        status="REJECTED",
        reason="; ".join(dict.fromkeys(map(str, refusals))),
        refused_at="rule",
        sentence=answer.error if own and answer is not None else known,
    )


def _text(levels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={level}" for name, level in levels.items()) or BASELINE


def _asked(candidate: Candidate, book: RuleBook) -> str:
    return " ".join(_request("baseline", candidate, book).argv)
