"""Where the time goes: the short profiles of a study as a table, one row an arm, and a sentence on communication against the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from runner.loadgen.profile import Profile
from runner.records import words
from runner.records.decision import Decision
from runner.records.files import read_json
from runner.records.paths import StudyPaths
from runner.records.schema import LaunchRecord

LARGEST = 8
MUCH_UNNAMED = 0.1


@dataclass(frozen=True)
class TimeSection:
    """`rows` share their keys, which are the table's heads; `kernels` are the baseline's largest; `findings` are sentences."""

    rows: tuple[dict[str, str], ...]
    kernels: tuple[dict[str, str], ...] = ()
    findings: tuple[str, ...] = ()


def time_section(study: StudyPaths, decision: Decision, launches: Sequence[LaunchRecord]) -> TimeSection | None:
    """None without a profile (protocol.profile=true takes them). A profile that cannot be read is passed over."""
    found = read_profiles(study, decision, launches)
    if not found:
        return None
    kinds = list(dict.fromkeys(kind for profile in found.values() for kind in profile.by_kind))
    rows = []
    for arm, profile in found.items():
        row = {"arm": arm, "ms a pass": f"{profile.pass_ms:.3f}"}
        row |= {words_of(kind): share_text(profile, kind) for kind in kinds}
        rows.append(row | {"idle": f"{profile.idle_ms:.3f}"})
    reference = decision.baseline if decision.baseline in found else next(iter(found))
    kernels = tuple(
        {"kernel": kernel.name, "kind": words_of(kernel.kind), "calls a pass": f"{kernel.calls:.1f}", "ms a pass": f"{kernel.ms:.4f}"}
        for kernel in found[reference].kernels[:LARGEST]
    )
    return TimeSection(tuple(rows), kernels, tuple(findings(reference, found)))


def read_profiles(study: StudyPaths, decision: Decision, launches: Sequence[LaunchRecord]) -> dict[str, Profile]:
    """The first profile of each arm, in the decision's order of arms."""
    found: dict[str, Profile] = {}
    for record in launches:
        place = record.artifacts.get("profile")
        if place is None or record.arm in found:
            continue
        try:
            found[record.arm] = Profile.model_validate(read_json(study.folder / place))
        except (OSError, ValueError, ValidationError):
            continue
    return {arm.name: found[arm.name] for arm in words.ordered(decision) if arm.name in found}


def findings(reference: str, found: dict[str, Profile]) -> list[str]:
    """The first question of such a study, answered by the reference arm: is it communication, or the products?"""
    profile = found[reference]
    products = profile.share("gemm") + profile.share("moe")
    said = [
        f"{reference}: of the time in which something ran, {profile.share('all_reduce'):.0%} went to communication,"
        f" {products:.0%} to matrix products and experts, {profile.share('attention'):.0%} to attention"
        f" ({profile.passes} forward passes on the {profile.device.upper()})."
    ]
    said += [
        f"{arm}: {one.unnamed_share:.0%} of the time is in kernels that no rule names; see the list of kernels in its profile."
        for arm, one in found.items()
        if one.unnamed_share > MUCH_UNNAMED
    ]
    if any(one.simulated for one in found.values()):
        said.append("SIMULATED: these kernels come from a cost model.")
    return said


def share_text(profile: Profile, kind: str) -> str:
    """Milliseconds a pass and the share of the busy time."""
    return f"{profile.by_kind[kind]:.3f} ({profile.share(kind):.0%})" if kind in profile.by_kind else "-"


def words_of(kind: str) -> str:
    return {"all_reduce": "communication", "gemm": "GEMM", "moe": "MoE"}.get(kind, kind)
