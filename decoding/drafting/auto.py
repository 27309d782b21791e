"""What "auto" means for one request: the method that has lately earned most, and now and then a trial of another.

Knows methods by name only. The rule: spine first, then the draft model's trees, where there is a draft model; stand as
soon as its store, which learns whichever method drafts, would have foretold much more than is being accepted. Every
`REVIEW_STEPS` steps of a request the method goes on that may well earn the most tokens a second: by what it earned in
this session, and a margin for how little is known of it lately (discounted UCB, Garivier and Moulines, 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.stores.earnings import Ledger

AUTO = "auto"
SPINE, STAND, DYNAMIC = "spine", "stand", "dynamic"

REVIEW_STEPS = 4
PROMISING = 1.5  # times what the best method is given a step
CHALLENGE = 0.9  # of what another than the first method may earn counts: noise speaks for whoever was measured last


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
    earnings = {method: ledger.of(method) for method in methods}
    counts = {method: 1.0 if method == methods[0] else CHALLENGE for method in methods}
    hoped = max(methods, key=lambda method: counts[method] * earnings[method].hope)  # the first that was never tried
    rates = ", ".join(f"{method} {earned.rate:.0f}" for method, earned in earnings.items())
    known = f"(tokens a second in this session: {rates})"
    if earnings[hoped].rate == max(earned.rate for earned in earnings.values()) > 0:
        return Choice(hoped, "best", f"auto: {hoped} earns most {known}")
    return Choice(hoped, "trial", f"auto: {hoped} may earn more {known}")


def _stand_fits(methods: Sequence[str], ledger: Ledger) -> bool:
    """Whether stand was ever tried, or its store promises much; then what it earned while cold is forgotten."""
    present = max(ledger.of(method).tokens_per_step for method in methods)
    is_promising = ledger.promise.tokens_per_step > PROMISING * max(present, 1.0)
    if is_promising and ledger.of(STAND).steps < REVIEW_STEPS / 2:
        ledger.forget(STAND)
    return is_promising or ledger.of(STAND).steps > 0
