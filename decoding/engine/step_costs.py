"""What a step costs, all in all: both models' forwards, by what is measured on them, and what an engine does beside.

Owns the measuring of both models, and medians over the latest steps. Knows nothing of what costs are for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from decoding.costs.price import CostCurve, Curves
from decoding.drafting.draft_model.state import DraftCost
from decoding.model.timing import KeptTimings, Timed, Timing
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS

MEDIAN_OF = 9  # steps: one slow moment of the machine moves no price
FORGOTTEN_AFTER = 32  # steps without a draft forward, of one that took longer than the curve says
HARVEST_ROUNDS, HARVEST_ROWS = 9, 64
NOVELTIES = 33  # steps: texts that repeat themselves share experts, and others do not


class StepCosts(Curves):
    """As of the latest steps. kept: timings of earlier starts."""

    def __init__(self, model: Timed, draft_model: Timed | None, kept: KeptTimings | None = None) -> None:
        self._timing = Timing(model, kept)
        self._draft_timing = Timing(draft_model, kept) if draft_model else None
        self._harvest = harvest_seconds(model.vocab_size, model.device)
        self._beside: deque[float] = deque([0.0], MEDIAN_OF)  # seconds of a step that are not its forwards'
        self._mixtures = model.mixtures
        self._novelties: deque[float] = deque([1.0], NOVELTIES)  # of tokens' experts
        self._draft_factors: deque[float] = deque([1.0] * MEDIAN_OF, MEDIAN_OF)  # of what the draft model's curve says
        self._num_without = 0  # steps, since the last draft forward
        self._measure()

    def note_step(self, beside: float, costs: Sequence[DraftCost], num_tokens: int = 1) -> None:
        """A step of so many tokens took `beside` seconds beyond its forwards; costs: what the draft model took for each
        sequence, in forwards that they shared.

        A draft forward runs behind a target's, which has emptied the caches, and takes longer than is measured of it.
        While there are none that is forgotten, or a busy moment might silence the draft model for good.
        """
        self._beside.append(beside)
        if self._mixtures is not None and self._forward.experts is not None:
            novelty = self._forward.experts.novelty_of(num_tokens, self._mixtures.num_distinct())
            self._novelties.extend([] if novelty is None else [novelty])
        if self._draft_forward is not None:
            self._note_draft(costs, self._draft_forward)
        self._take_curves()

    def refine(self) -> None:
        """Measure forwards on for a moment, while nobody waits."""
        self._timing.refine()
        if self._draft_timing is not None:
            self._draft_timing.refine()
        self._measure()

    def _note_draft(self, costs: Sequence[DraftCost], alone: CostCurve) -> None:
        num_forwards = max((cost.num_forwards for cost in costs), default=0)
        self._num_without = 0 if num_forwards else self._num_without + 1
        if num_forwards:
            tokens_each = sum(cost.num_tokens for cost in costs) / num_forwards
            expected = num_forwards * (alone.base + alone.seconds_of_tokens(tokens_each))
            self._draft_factors.append(sum(cost.seconds for cost in costs) / expected)
        elif self._num_without % FORGOTTEN_AFTER == 0:
            self._draft_factors.append(1.0)

    def _measure(self) -> None:
        """Take what is measured of the forwards by now."""
        self._forward = self._timing.curve
        self._draft_forward = self._draft_timing.curve if self._draft_timing is not None else None
        self._take_curves()

    def _take_curves(self) -> None:
        forward, alone = self._forward, self._draft_forward
        experts = forward.experts and replace(forward.experts, novelty=median(self._novelties))
        beside = median(self._beside)
        self.curve = replace(forward, base=forward.base + beside, harvest=self._harvest, experts=experts)
        self.draft_curve = None
        if alone is not None:
            factor = max(1.0, median(self._draft_factors))
            self.draft_curve = alone.slower(factor)


def harvest_seconds(vocab_size: int, device: torch.device) -> float:
    """What the stores' learning adds to a token: finding the likeliest ones among its logits. On a device a step's are
    found at once, which takes long for the first of them alone."""

    def seconds(num_rows: int) -> float:
        logits_RV, times = torch.randn(num_rows, vocab_size, device=device), []
        for _ in range(HARVEST_ROUNDS):
            started = time.perf_counter()
            top_tokens(logits_RV, NUM_SUCCESSORS)
            times.append(time.perf_counter() - started)
        return min(times)  # the quickest, as of forwards: a busy moment must not be believed for good

    if device.type == "cpu":
        return seconds(1)
    return max(0.0, seconds(HARVEST_ROWS) - seconds(1)) / (HARVEST_ROWS - 1)
