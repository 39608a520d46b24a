"""A factor: one thing that is varied. Levels, what each sets, what it needs, and how its effect is proved."""

from typing import Any

from pydantic import Field, model_validator

from runner.spec.base import Strict


class Treatment(Strict):
    """What a level sets: engine options (name without dashes in front), environment variables, source patches.

    An option set to true is a bare switch, to null it is removed, a list gives several words.
    """

    options: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = Field(default=(), description="names of patch sets, folders under experiments/*/patches or a path")


class VersionedTreatment(Treatment):
    """Replaces the level's treatment for the engine versions in `engine` (PEP 440 specifier set)."""

    engine: str
    expect: str | None = Field(
        default=None, description="what is known beforehand of the level in these versions, instead of the level's own"
    )


class Condition(Strict):
    """One requirement in the closed grammar of `planning/conditions.py`; exactly one subject.

    node: `gpus >= 2`, `link == pcie`, `capability in [90, 100]`; engine: `>=0.5.9`; factor: `mscclpp == on`;
    model: `experts > 0`; arm: an effective option of the arm, `tp-size >= 2`. `why` is shown when it does not hold.
    """

    node: str | None = None
    engine: str | None = None
    factor: str | None = None
    model: str | None = None
    arm: str | None = None
    why: str = ""
    when: str | None = Field(default=None, description="only for these engine versions")
    sentence: str = Field(default="", description="the engine's own words when it refuses for this reason")
    confirmed: bool = Field(default=True, description="false: never refuses, shown among the plan's unconfirmed rules instead")

    @model_validator(mode="after")
    def _one_subject(self) -> "Condition":
        if sum(value is not None for value in (self.node, self.engine, self.factor, self.model, self.arm)) != 1:
            raise ValueError("a condition has exactly one of node, engine, factor, model, arm")
        return self


class Marker(Strict):
    """Where proof is looked for; exactly one key. log/debug_log/trace: text that must occur; probe: `not importable.mscclpp`;
    metrics: `sglang:name > 0`; server_info: `enable_mscclpp == true` (also `internal_states.0.x`)."""

    log: str | None = None
    debug_log: str | None = None
    trace: str | None = None
    probe: str | None = None
    metrics: str | None = None
    server_info: str | None = None


class EvidenceRule(Strict):
    """For the engine versions in `engine`: markers that prove the level in force, or prove that it is not.

    `levels` limits the rule to these levels (default: every level but the reference level). Several markers: any one proves.
    """

    engine: str = ">=0"
    levels: tuple[str, ...] | None = None
    observed: Marker | tuple[Marker, ...] = ()
    contradicted: Marker | tuple[Marker, ...] = ()
    resolved: Marker | tuple[Marker, ...] = ()
    expected: Marker | tuple[Marker, ...] = Field(
        default=(), description="these versions print this whenever the level is in force: absent from a log that got ready, it contradicts"
    )
    engine_chose: Marker | tuple[Marker, ...] = Field(default=(), description="the engine switched the factor on by itself")
    engine_withdrew: Marker | tuple[Marker, ...] = Field(
        default=(), description="the engine took its own choice back, as the arm had asked"
    )
    note: str = ""


class Level(Treatment):
    """One value of a factor."""

    variants: tuple[VersionedTreatment, ...] = ()
    requires: tuple[Condition, ...] = ()
    conflicts: tuple[Condition, ...] = ()
    bundle: bool = Field(default=False, description="sets more than the flag itself; judged and shown as a bundle")
    expect: str = Field(default="", description="what is known beforehand, shown in the plan")


class FactorSpec(Strict):
    """One factor file of `conf/factor`. The first level is the reference unless `reference` names another."""

    name: str = ""
    description: str = ""
    levels: dict[str, Level]
    reference: str | None = None
    requires: tuple[Condition, ...] = ()
    conflicts: tuple[Condition, ...] = ()
    equivalent: tuple["Equivalence", ...] = ()
    evidence: tuple[EvidenceRule, ...] = ()
    reads: dict[str, str] = Field(
        default_factory=dict, description="variable -> engine versions that read it; asked of the installed source where there is one"
    )
    known: str = Field(
        default="", description="engine versions these rules were read from; for others they are shown as unconfirmed, '' makes no claim"
    )
    value_rule: str | None = Field(
        default=None, description="a named rule for level texts that the file does not list, e.g. power_of_two_bytes"
    )
    value_env: str | None = Field(default=None, description="variable that such a level sets")
    value_option: str | None = Field(default=None, description="option that such a level sets")
    communication: bool = Field(default=False, description="a communication flag: bounded by the communication budget")
    fusion: bool = Field(default=False, description="removes other kernels too: never left out by a communication bound")

    @property
    def reference_level(self) -> str:
        return self.reference if self.reference is not None else next(iter(self.levels))


class Equivalence(Strict):
    """Levels that are one and the same under a condition: the cell is DUPLICATE of the one with level `same_as`."""

    when: Condition
    levels: tuple[str, ...] = ()
    same_as: str | None = None
    reason: str


FactorSpec.model_rebuild()
