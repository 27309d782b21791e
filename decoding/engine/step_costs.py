"""What a step costs, all in all: the forwards, by what is measured on them, and what an engine does beside.

Owns the measuring of both models. Knows nothing of what costs are for.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from statistics import median

import msgspec

from decoding.costs.curve import CostCurve
from decoding.model.kept_timings import KeptTimings
from decoding.model.timing import Timed, Timing

NUM_STARTS = 5


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds that a step takes beyond what the curves say of its forwards, which follow other work. plain: any;
    drafting: more of each sequence that drafts; row: of each drafted node; round: of each sequence in each forward of
    the draft model; cold: of such a forward."""

    plain: float = 0.0
    drafting: float = 0.0
    row: float = 0.0
    round: float = 0.0
    cold: float = 0.0


class Besides(msgspec.Struct, frozen=True):
    """latest: as measured at the latest starts."""

    latest: list[Beside]


class StepCosts:
    """curve: of a step; draft_curve: of a draft forward, where there is a draft model. Both as of the last `refine`."""

    curve: CostCurve
    draft_curve: CostCurve | None

    def __init__(self, model: Timed, draft_model: Timed | None, kept: KeptTimings | None = None) -> None:
        self._timing = Timing(model, kept)
        self._draft_timing = Timing(draft_model, kept) if draft_model else None
        self._kept, names = kept, [each.fingerprint for each in (model, draft_model) if each]
        self._fingerprint = f"{names} {model.threads.candidates}"
        self._beside = Beside()
        self._take_curves()

    @property
    def forward_curve(self) -> CostCurve:
        """Of the target's forwards alone."""
        return self._timing.curve

    @property
    def draft_forward_curve(self) -> CostCurve | None:
        """Of the draft model's alone."""
        return self._draft_timing.curve if self._draft_timing is not None else None

    def note_beside(self, beside: Beside, has_drafted: bool) -> None:
        """Let the curves hold what is done beside the forwards; where drafting was measured with it, the medians of
        this start and the last ones, since a few steps of each tell little on a machine with other work."""
        self._beside = beside
        if has_drafted and self._kept is not None:
            known = self._kept.read(self._fingerprint, Besides)
            latest = [*(known.latest if known else ()), beside][-NUM_STARTS:]
            self._kept.write(self._fingerprint, Besides(latest))
            self._beside = Beside(*map(median, zip(*map(astuple, latest), strict=True)))
        self._take_curves()

    def refine(self) -> None:
        """Measure on for a moment, while nobody waits."""
        self._timing.refine()
        if self._draft_timing is not None:
            self._draft_timing.refine()
        self._take_curves()

    def _take_curves(self) -> None:
        forward, beside = self.forward_curve, self._beside
        row = forward.row + beside.row
        self.curve = replace(forward, base=forward.base + beside.plain, row=row, draft=beside.drafting)
        self.draft_curve = alone = self.draft_forward_curve
        if alone is not None:
            self.draft_curve = replace(alone, base=alone.base + beside.cold, draft=beside.round)
