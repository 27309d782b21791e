"""What "auto" means for one request: the method that has lately earned most, and now and then a trial of another.

Knows methods by name only. The rule: spine first; the draft model's trees, where there is a draft model, are tried for
`TRIAL_STEPS` steps; stand is tried as soon as its store, which learns whichever method drafts, would have foretold much
more than is being accepted. Then whichever earned the most tokens a second in this session drafts, and is weighed again
every `REVIEW_STEPS` steps of a request. What a method earned long ago is forgotten, and it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.earnings import Ledger

AUTO = "auto"
SPINE, STAND, DYNAMIC = "spine", "stand", "dynamic"

TRIAL_STEPS = 16
REVIEW_STEPS = 8
PROMISING = 1.5  # times what the best method is given a step
HOPELESS = 0.7  # of the best rate: a trial that is this far behind ends at its first review


@dataclass(frozen=True, slots=True)
class Choice:
    """A method and why. kind: "requested", "only", "trial", "best" or "fallback", for counting; reason: a sentence."""

    method: str
    kind: str
    reason: str


def candidates(has_draft_model: bool) -> list[str]:
    """The methods that a request may begin with, the safest first."""
    return [SPINE, DYNAMIC] if has_draft_model else [SPINE]


def choose(methods: Sequence[str], ledger: Ledger) -> Choice:
    """One of `methods`, or stand, for the next steps of a request, by what each has earned in its session."""
    methods = [*methods, STAND] if _stand_fits(methods, ledger) else methods
    if len(methods) == 1:
        return Choice(methods[0], "only", f"auto: {methods[0]}, nothing else has promised more in this session")
    best_rate = max(ledger.of(method).rate for method in methods)
    for method in methods:
        if not _is_tried(method, ledger, best_rate):
            return Choice(method, "trial", f"auto: {method} is on trial in this session")
    rates = {method: ledger.of(method).rate for method in methods}
    best = max(methods, key=lambda method: rates[method])
    shown = ", ".join(f"{method} {rate:.0f}" for method, rate in rates.items())
    return Choice(best, "best", f"auto: {best} earns most in this session (tokens a second: {shown})")


def _stand_fits(methods: Sequence[str], ledger: Ledger) -> bool:
    """Whether stand has earned something, or its store promises much; then what it earned while cold is forgotten."""
    if ledger.of(STAND).steps and ledger.steps_since(STAND) <= REVIEW_STEPS:
        return True
    present = max(ledger.of(method).tokens_per_step for method in methods)
    if ledger.promise.tokens_per_step > PROMISING * max(present, 1.0):
        ledger.forget(STAND)
        return True
    return bool(ledger.of(STAND).steps)


def _is_tried(method: str, ledger: Ledger, best_rate: float) -> bool:
    earned = ledger.of(method)
    is_hopeless = earned.steps >= REVIEW_STEPS / 2 and earned.rate < HOPELESS * best_rate
    return earned.steps >= TRIAL_STEPS * 0.8 or is_hopeless
