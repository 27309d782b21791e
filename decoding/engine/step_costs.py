"""What a step costs, all in all: the forwards, by what is measured on them, and what an engine does beside.

Owns the measuring of both models. Knows nothing of what costs are for.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from statistics import median

import msgspec

from decoding.costs.calibration import LONGEST_LATER
from decoding.costs.curve import CostCurve
from decoding.model.kept_timings import KeptTimings
from decoding.model.timing import Timed, Timing

MEDIAN_OF = 5  # measurements of what is done beside forwards, of this start and of earlier ones
LATER_MEASUREMENTS = 5  # of it, of each start while nobody waits
ROUNDS_BETWEEN = 16  # of `refine`


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds that a step takes beyond what the curves say of its forwards, which follow other work. plain: any;
    drafting: more of each sequence that drafts; row: of each drafted node; round: of each sequence in each forward of
    the draft model; cold: of such a forward; request: of each sequence, whether it drafts or not."""

    plain: float = 0.0
    drafting: float = 0.0
    row: float = 0.0
    round: float = 0.0
    cold: float = 0.0
    request: float = 0.0


class Besides(msgspec.Struct, frozen=True):
    """latest: the latest measurements, of several starts."""

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
        known = kept.read(self._fingerprint, Besides) if kept is not None else None
        self._latest = known.latest if known is not None else []
        self._beside, self._has_drafted = Beside(), False
        self._num_rounds, self._num_later, self._seconds_of_one = 0, 0, 0.0
        self._take_curves()

    @property
    def forward_curve(self) -> CostCurve:
        """Of the target's forwards alone."""
        return self._timing.curve

    @property
    def draft_forward_curve(self) -> CostCurve | None:
        """Of the draft model's alone."""
        return self._draft_timing.curve if self._draft_timing is not None else None

    def is_beside_due(self, can_draft: bool) -> bool:
        """Whether it is time to measure what is done beside forwards, while nobody waits: with drafting as soon as that
        can be, and some more times, since the machine may have been busy."""
        is_due = self._num_later < LATER_MEASUREMENTS and self._num_rounds >= ROUNDS_BETWEEN
        return can_draft and (not self._has_drafted or (is_due and self._seconds_of_one <= LONGEST_LATER))

    def note_beside(self, beside: Beside, has_drafted: bool, seconds: float) -> None:
        """Let the curves hold what is done beside the forwards, which took `seconds` to measure. Where drafting was
        measured with it, the medians of the latest: a few steps of each tell little on a machine with other work."""
        self._beside, self._seconds_of_one = beside, seconds
        if has_drafted:
            self._num_later += self._has_drafted
            self._has_drafted, self._num_rounds = True, 0
            self._latest = [*self._latest, beside][-MEDIAN_OF:]
            self._beside = Beside(*map(median, zip(*map(astuple, self._latest), strict=True)))
            if self._kept is not None:
                self._kept.write(self._fingerprint, Besides(self._latest))
        self._take_curves()

    def refine(self) -> None:
        """Measure forwards on for a moment, while nobody waits."""
        self._num_rounds += 1
        self._timing.refine()
        if self._draft_timing is not None:
            self._draft_timing.refine()
        self._take_curves()

    def _take_curves(self) -> None:
        forward, beside = self.forward_curve, self._beside
        self.curve = replace(
            forward,
            base=forward.base + beside.plain,
            row=forward.row + beside.row,
            draft=beside.drafting,
            request=beside.request,
            beside=beside.row,
        )
        self.draft_curve = alone = self.draft_forward_curve
        if alone is not None:
            self.draft_curve = replace(alone, base=alone.base + beside.cold, draft=beside.round)
