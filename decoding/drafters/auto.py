"""What "auto" means for one request: spine, or for a sampled one whichever has been accepted more in its session.

Knows methods by name only. The rule: greedy requests get spine. So do a session's first sampled ones, as a cold
n-gram store drafts worse; then stand is tried, long enough that the steps which fill its store do not decide; then
whichever emitted more a step, late steps counting most.
"""

from __future__ import annotations

from collections.abc import Mapping

from decoding.session import Acceptance

AUTO = "auto"
SPINE, STAND = "spine", "stand"
TRIAL_STEPS = {SPINE: 64, STAND: 192}  # of sampled decoding before a method's acceptance in a session is believed

_UNSEEN = Acceptance()


def choose_method(temperature: float, measured: Mapping[str, Acceptance]) -> tuple[str, str]:
    """The method and why; measured: by method, what sampled requests of the session were given a step."""
    if temperature == 0:
        return SPINE, "auto: greedy, so the strongest method that needs no draft model"
    for method, other in ((SPINE, STAND), (STAND, SPINE)):
        if measured.get(method, _UNSEEN).steps < TRIAL_STEPS[method]:
            return method, f"auto: sampled; {method} until this session can compare it with {other}"
    taus = {method: measured[method].tau for method in (STAND, SPINE)}
    best = STAND if taus[STAND] > taus[SPINE] else SPINE
    shown = ", ".join(f"{method} {tau:.2f}" for method, tau in taus.items())
    return best, f"auto: {best} accepts most in this session's sampled replies (tokens a step: {shown})"
