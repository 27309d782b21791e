"""What a step costs, all in all: the forwards, by what is measured on them, and what an engine does beside.

Owns the measuring of both models. Knows nothing of what costs are for.
"""

from __future__ import annotations

from dataclasses import replace

from decoding.costs.curve import CostCurve
from decoding.model.kept_timings import KeptTimings
from decoding.model.timing import Timed, Timing


class StepCosts:
    """curve: of a step; draft_curve: of a draft forward, where there is a draft model. Both as of the last `refine`."""

    curve: CostCurve
    draft_curve: CostCurve | None

    def __init__(self, model: Timed, draft_model: Timed | None, kept: KeptTimings | None = None) -> None:
        self._timing = Timing(model, kept)
        self._draft_timing = Timing(draft_model, kept) if draft_model else None
        self._plain, self._drafting = 0.0, 0.0
        self._take_curves()

    def note_beside(self, plain: float, drafting: float) -> None:
        """Seconds of a plain step beside its forward, and how many more a sequence takes that drafts."""
        self._plain, self._drafting = plain, drafting
        self._take_curves()

    def refine(self) -> None:
        """Measure on for a moment, while nobody waits."""
        self._timing.refine()
        if self._draft_timing is not None:
            self._draft_timing.refine()
        self._take_curves()

    def _take_curves(self) -> None:
        forward = self._timing.curve
        self.curve = replace(forward, base=forward.base + self._plain, draft=self._drafting)
        self.draft_curve = self._draft_timing.curve if self._draft_timing else None
