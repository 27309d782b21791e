"""What a step costs, all in all: the forwards, by what is measured on them, and what an engine does beside.

Owns the measuring of both models, and what is learned from steps. Knows nothing of what costs are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import msgspec

from decoding.costs.curve import CostCurve, Curves
from decoding.costs.step_fit import Beside, StepFit, StepKind
from decoding.model.kept_timings import KeptTimings
from decoding.model.timing import Timed, Timing

MEDIAN_OF = 9  # steps with draft forwards: one slow moment of the machine moves no price
FORGOTTEN_AFTER = 32  # steps without a draft forward, of one that took longer than the curve says
KEPT_EVERY = 1024  # steps that were learned from, between two times that it is kept


class KeptBeside(msgspec.Struct, frozen=True):
    """What was learned of steps by earlier starts."""

    beside: Beside


class StepCosts(Curves):
    """As of the last step. is_measured: whether steps that draft have been measured, by this start or an earlier
    one."""

    def __init__(self, model: Timed, draft_model: Timed | None, kept: KeptTimings | None = None) -> None:
        self._timing = Timing(model, kept)
        self._draft_timing = Timing(draft_model, kept) if draft_model else None
        self._kept, names = kept, [each.fingerprint for each in (model, draft_model) if each]
        self._fingerprint = f"{names} {model.threads.candidates}"
        known = kept.read(self._fingerprint, KeptBeside) if kept is not None else None
        self.is_measured = known is not None
        self._fit = StepFit(Beside() if known is None else known.beside)
        self._num_unkept = 0  # steps
        self._draft_factors: deque[float] = deque([1.0] * MEDIAN_OF, MEDIAN_OF)  # of the latest steps
        self._num_without = 0  # steps, since the last draft forward
        self._take_curves()

    @property
    def forward_curve(self) -> CostCurve:
        """Of the target's forwards alone."""
        return self._timing.curve

    def note_step(self, kind: StepKind, seconds: float, rows: Sequence[int], contexts: Sequence[int]) -> None:
        """A step of no prompts, of so many rows at these contexts, took `seconds` beside the draft model's forwards."""
        self._num_unkept += 1
        if self._fit.note(kind, self._forward_curve.step_seconds(rows, contexts), seconds):
            self.learn()

    def note_draft(self, seconds: float, num_forwards: int, num_rows: int) -> None:
        """A step's forwards of the draft model took `seconds`: behind a target's, which has emptied the caches, more
        than is measured of them. While there are none that is forgotten, or a busy moment might silence it for good."""
        if self._draft_timing is None:
            return
        self._num_without = 0 if num_forwards else self._num_without + 1
        if num_forwards:
            alone = self._draft_forward_curve
            expected = num_forwards * (alone.base + alone.rows_seconds(num_rows / num_forwards))
            self._draft_factors.append(seconds / expected)
        elif self._num_without % FORGOTTEN_AFTER == 0:
            self._draft_factors.append(1.0)
        else:
            return
        self._take_curves()

    def learn(self) -> None:
        """Let the curves follow the steps so far."""
        self._fit.fit()
        self._take_curves()

    def refine(self) -> None:
        """Measure forwards on for a moment, while nobody waits."""
        self._timing.refine()
        if self._draft_timing is not None:
            self._draft_timing.refine()
        self._take_curves()
        if self.is_measured and self._num_unkept >= KEPT_EVERY:
            self._keep()

    def end_measuring(self) -> None:
        """Steps that draft were measured: later starts begin with what was learned."""
        self.is_measured = True
        self.learn()
        self._keep()

    def _keep(self) -> None:
        self._num_unkept = 0
        if self._kept is not None:
            self._kept.write(self._fingerprint, KeptBeside(self._fit.beside))

    def _take_curves(self) -> None:
        forward, beside = self.forward_curve, self._fit.beside
        self.curve = replace(
            forward,
            base=forward.base + beside.step,
            row=forward.row + beside.node,
            few_row=forward.few_row + beside.node,
            look=beside.look,
            draft=beside.tree,
            request=beside.request,
            harvest=beside.harvest,
        )
        self._forward_curve = forward
        self.draft_curve = None
        if self._draft_timing is not None:
            self._draft_forward_curve = alone = self._draft_timing.curve
            factor = max(1.0, median(self._draft_factors))
            self.draft_curve = replace(
                alone,
                base=factor * alone.base,
                row=factor * alone.row,
                few_row=factor * alone.few_row,
                draft=beside.round,
            )
