"""The output guard's judgement: are an arm's outputs outside of what the baseline's own launches show?

Yardstick: the baseline's launches of the same study. Each launch is one observation (its numbers share one process), reduced
to two: its mean shift of log-probability against the baseline, and how far its pattern lies from the baseline's (root mean
square over positions). Both are judged by Student's t with as many degrees of freedom as there are launches, so that noise
common to a launch raises no false alarm; where noise is independent over positions, means are sharp and a shift of a few
spreads is far outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runner.records.schema import Fingerprint

ALPHA = 0.004
# A baseline that repeats bit for bit has no spread of its own: then this stands in (rounding of 16-bit logits), nats.
STABLE_SPREAD = 1e-6
ROUNDING_NATS = 0.05
# Greedy tokens: an arm that leaves the baseline's path at once in nearly every prompt, while the baseline keeps to it.
KEEPS_PATH = 0.8
LOSES_PATH = 0.2
LEAST_TOKENS = 16

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GuardVerdict:
    """`state`: pass, broken or cannot_tell (says why; never read as a pass). `shift` nats, `distance` nats (root mean square),
    `spread` nats: the baseline's own standard deviation of one position; `path`: mean share of greedy tokens kept."""

    state: Literal["pass", "broken", "cannot_tell"]
    reason: str
    shift: float | None = None
    distance: float | None = None
    spread: float | None = None
    path: float | None = None
    task_score: float | None = None

    @property
    def broken(self) -> bool:
        return self.state == "broken"


def compare(arm: Sequence[Fingerprint], baseline: Sequence[Fingerprint]) -> GuardVerdict:
    """Judges all of an arm's launches together. Fingerprints of other prompts than the baseline's are left out."""
    wrong = _wrong_state(arm, baseline)
    if wrong is not None:
        return wrong
    reference = [print_ for print_ in baseline if print_.state == "usable" and print_.logprobs]
    if not reference:
        return GuardVerdict("cannot_tell", _why_unusable(baseline, "baseline"))
    shape = [len(row) for row in reference[0].logprobs]
    same = [p for p in reference if p.prompts_hash == reference[0].prompts_hash and [len(row) for row in p.logprobs] == shape]
    own = [p for p in arm if p.state == "usable" and p.prompts_hash == reference[0].prompts_hash]
    if not own:
        return GuardVerdict("cannot_tell", _why_unusable(arm, "arm"))
    if any([len(row) for row in p.logprobs] != shape for p in own):
        return GuardVerdict("broken", "the number of prompt log-probabilities differs from the baseline's")
    scores = [p.task_score for p in own if p.task_score is not None]
    return _judge(own, same, float(np.mean(scores)) if scores else None)


def _judge(own: Sequence[Fingerprint], reference: Sequence[Fingerprint], score: float | None) -> GuardVerdict:
    base, new = _matrix(reference), _matrix(own)
    center = base.mean(axis=0)
    shift = float((new - center).mean())
    distance = float(np.sqrt(((new - center) ** 2).mean()))
    path = _path_kept(own, reference)
    spread = float(np.sqrt(base.var(axis=0, ddof=1).mean())) if len(base) > 1 else None

    def verdict(state: Literal["pass", "broken", "cannot_tell"], reason: str) -> GuardVerdict:
        return GuardVerdict(state, reason, shift, distance, spread, path, score)

    lost = _lost_path(own, reference, path)
    if lost:
        return verdict("broken", lost)
    fallen = _fallen_score(own, reference)
    if fallen:
        return verdict("broken", fallen)
    if spread is None:
        return verdict("cannot_tell", "one launch of the baseline shows no spread to measure against")
    if spread < STABLE_SPREAD:
        if distance > ROUNDING_NATS:
            return verdict("broken", f"log-probabilities are {distance:.3g} nats from a baseline that repeats exactly")
        return verdict("pass", f"within rounding ({distance:.2g} nats) of a baseline that repeats exactly")
    reason = _shifted(base, new) or _outlying(base, new)
    if reason:
        return verdict("broken", f"{reason}; the baseline's own spread is {spread:.3g} nats")
    return verdict("pass", f"shift {shift:+.2g} nats, inside the baseline's own spread ({spread:.2g} nats a position)")


def _shifted(base: Array, new: Array) -> str:
    """Two-sample t on the launches' mean shifts (pooled variance), needs two launches on a side."""
    from scipy import stats

    a, b = (new - base.mean(axis=0)).mean(axis=1), (base - base.mean(axis=0)).mean(axis=1)
    df = len(a) + len(b) - 2
    if df < 2:
        return ""
    variance = (((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()) / df
    error = float(np.sqrt(_at_least(variance, base, 1.0) * (1 / len(a) + 1 / len(b))))
    score = abs(float(a.mean() - b.mean())) / error
    if score > float(stats.t.isf(ALPHA / 3 / 2, df)):
        return f"log-probabilities are shifted by {float(a.mean()):+.3g} nats on average ({score:.0f} standard errors)"
    return ""


def _outlying(base: Array, new: Array) -> str:
    """Each launch of the arm against the baseline's launches alone: one wrong launch of several is wrong enough."""
    from scipy import stats

    count, positions = base.shape
    df = count - 1
    limit = float(stats.t.isf(ALPHA / 3 / (2 * len(new)), df))
    center = base.mean(axis=0)
    widen = np.sqrt(1 + 1 / count)
    means = (base - center).mean(axis=1)
    error = widen * np.sqrt(_at_least(means.var(ddof=1), base, 1.0))
    shifts = (new - center).mean(axis=1)
    worst = int(np.argmax(np.abs(shifts)))
    if abs(shifts[worst]) / error > limit:
        return f"launch {worst + 1} of the arm is shifted by {shifts[worst]:+.3g} nats"
    # Distances, each from a center that does not hold the launch itself, on a log scale; the factors undo the center's own noise.
    own = np.sqrt(((new - center) ** 2).mean(axis=1)) / widen
    loo = np.array([np.sqrt(((row - np.delete(base, at, axis=0).mean(axis=0)) ** 2).mean()) for at, row in enumerate(base)])
    loo /= np.sqrt(1 + 1 / max(1, count - 1))
    logs = np.log(np.maximum(loo, 1e-12))
    deviation = widen * max(float(logs.std(ddof=1)), 1 / np.sqrt(2 * positions))
    far = int(np.argmax(own))
    if (np.log(max(own[far], 1e-12)) - logs.mean()) / deviation > limit:
        return f"launch {far + 1} of the arm is {own[far]:.3g} nats (root mean square) from the baseline"
    return ""


def _at_least(variance: float, base: Array, share: float) -> float:
    """A variance of launch means is never taken below what independent noise over positions would leave: with two or three
    launches it comes out far too small by chance now and then."""
    independent = float(base.var(axis=0, ddof=1).mean()) / base.shape[1]
    return float(max(variance, share * independent))


def _matrix(prints: Sequence[Fingerprint]) -> Array:
    """One row a launch, all prompts' log-probabilities behind one another."""
    return np.array([[value for row in print_.logprobs for value in row] for print_ in prints], dtype=np.float64)


def _wrong_state(arm: Sequence[Fingerprint], baseline: Sequence[Fingerprint]) -> GuardVerdict | None:
    """NaN or wrong lengths break an arm, unless the baseline has them too (then nothing can be told)."""
    for state, words in (("nan", "NaN in the outputs"), ("wrong_length", "outputs of a wrong length")):
        bad = [print_ for print_ in arm if print_.state == state]
        if bad and any(print_.state == state for print_ in baseline):
            return GuardVerdict("cannot_tell", f"{words}, in the baseline too")
        if bad:
            return GuardVerdict("broken", f"{words} in {len(bad)} of {len(arm)} launches ({bad[0].note or state})")
    return None


def _why_unusable(prints: Sequence[Fingerprint], who: str) -> str:
    states = sorted({print_.state for print_ in prints})
    note = next((print_.note for print_ in prints if print_.note), "")
    if not prints:
        return f"the {who} has no fingerprint"
    if states == ["usable"]:
        return f"the {who}'s fingerprints are of other prompts"
    return f"the {who}'s fingerprints are {', '.join(states).replace('_', ' ')}" + (f": {note}" if note else "")


def _path_kept(own: Sequence[Fingerprint], reference: Sequence[Fingerprint]) -> float | None:
    """Mean over launches and prompts of the share of greedy tokens before the first that no baseline launch gave there."""
    shares = [share for print_ in own for share in _kept(print_, reference)]
    return float(np.mean(shares)) if shares else None


def _kept(print_: Fingerprint, reference: Sequence[Fingerprint]) -> list[float]:
    shares = []
    for prompt, tokens in enumerate(print_.tokens):
        known = [other.tokens[prompt] for other in reference if other is not print_ and prompt < len(other.tokens)]
        if not tokens or not known:
            continue
        kept = max(_common(tokens, other) for other in known)
        shares.append(kept / len(tokens))
    return shares


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    return min(len(left), len(right))


def _lost_path(own: Sequence[Fingerprint], reference: Sequence[Fingerprint], path: float | None) -> str:
    """Decoding can be wrong while the prompt's log-probabilities (prefill) are right; near-ties part two right paths only later."""
    tokens = sum(len(row) for row in own[0].tokens)
    baseline = [share for print_ in reference for share in _kept(print_, reference)]
    if path is None or tokens < LEAST_TOKENS or not baseline:
        return ""
    usual = float(np.mean(baseline))
    if usual >= KEEPS_PATH and path < LOSES_PATH:
        return f"greedy tokens leave the baseline's path at once ({path:.0%} kept, the baseline keeps {usual:.0%})"
    return ""


def _fallen_score(own: Sequence[Fingerprint], reference: Sequence[Fingerprint]) -> str:
    """Scored tasks: a mean below the baseline's by more than its own range and a tenth."""
    scores = [p.task_score for p in own if p.task_score is not None]
    usual = [p.task_score for p in reference if p.task_score is not None]
    if not scores or not usual:
        return ""
    drop = float(np.mean(usual) - np.mean(scores))
    if drop > max(0.1, 2 * (max(usual) - min(usual))):
        return f"the task score fell from {np.mean(usual):.2f} to {np.mean(scores):.2f}"
    return ""
