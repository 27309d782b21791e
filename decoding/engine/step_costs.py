"""What a step costs, all in all: both models' forwards, by what is measured on them, and what the host does beside.

Owns the measuring of both models, and medians over the latest steps. Knows nothing of what costs are for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch

from decoding.costs.price import CostCurve, Curves
from decoding.drafting.draft_model.state import DraftCost
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.timing import Timed, Timing
from decoding.sampling.top_tokens import top_tokens
from decoding.stores.successor_table import NUM_SUCCESSORS

MEDIAN_OF = 9  # steps: one slow moment of the machine moves no price
FORGOTTEN_AFTER = 32  # steps in which nobody drafts, after which drafting is believed to take half as long
HARVEST_ROUNDS, HARVEST_ROWS = 9, 64
NOVELTIES = 33  # steps: texts that repeat themselves share experts, and others do not


class HostStep(NamedTuple):
    """seconds: of one step, beside its forwards. num_requests: that were given tokens; num_probed: of them, whose
    stores were asked, which took `probing` of the seconds; num_trees: that drafted, which took `drafting` of them and
    more, since trees are also packed, sampled and committed; num_harvested: nodes of trees whose logits were learned
    from, which has a price of its own."""

    seconds: float
    num_requests: int = 1
    num_probed: int = 0
    probing: float = 0.0
    num_trees: int = 0
    drafting: float = 0.0
    num_harvested: int = 0


class HostCosts:
    """At the present load. plain: seconds of a step whatever is drafted in it; probe, tree: of each request that is
    asked, that drafts. What drafting took is forgotten while nobody drafts, or a busy moment might silence it for good.
    """

    def __init__(self) -> None:
        self.plain = self.probe = self.tree = 0.0
        self._plain: deque[float] = deque([0.0], MEDIAN_OF)
        self._each: deque[float] = deque(maxlen=MEDIAN_OF)  # of a step in which nobody drafts, for each request
        self._probe: deque[float] = deque(maxlen=MEDIAN_OF)
        self._tree: deque[float] = deque(maxlen=MEDIAN_OF)
        self._num_without = 0  # steps, since somebody drafted

    def note_step(self, step: HostStep, harvest: float = 0.0) -> None:
        """harvest: seconds of each node that was learned from."""
        harvested = harvest * step.num_harvested
        rest = max(0.0, step.seconds - step.probing - harvested)
        if step.num_probed:
            self._probe.append(step.probing / step.num_probed)
            self.probe = _median(self._probe)
        if step.num_trees:
            self._num_without = 0
            plain = step.num_requests * _median(self._each) if self._each else rest
            self._tree.append(max(0.0, min(step.drafting, rest), rest - plain) / step.num_trees)
            self.tree = _median(self._tree)
        elif step.num_requests:
            self._num_without += 1
            self._each.append(rest / step.num_requests)
            if self._num_without % FORGOTTEN_AFTER == 0:
                self.tree /= 2
                self._tree = deque([each / 2 for each in self._tree], MEDIAN_OF)
        self._plain.append(max(0.0, rest - step.num_trees * self.tree))
        self.plain = _median(self._plain)


def _median(latest: deque[float]) -> float:
    """The lower one of two."""
    return sorted(latest)[(len(latest) - 1) // 2]


class StepCosts(Curves):
    """As of the latest steps. kept: timings of earlier starts."""

    def __init__(self, model: Timed, draft_model: Timed | None, kept: KeptMeasurements | None = None) -> None:
        self._timing = Timing(model, kept)
        self._draft_timing = Timing(draft_model, kept) if draft_model else None
        self._harvest = harvest_seconds(model.vocab_size, model.device)
        self._host = HostCosts()
        self._mixtures = model.mixtures
        self._novelties: deque[float] = deque([1.0], NOVELTIES)  # of tokens' experts
        self._draft_factors: deque[float] = deque([1.0] * MEDIAN_OF, MEDIAN_OF)  # of what the draft model's curve says
        self._num_without = 0  # steps, since the last draft forward
        self._measure()

    def note_step(self, host: HostStep, costs: Sequence[DraftCost], num_tokens: int = 1) -> None:
        """A step of so many tokens took this of the host; costs: what the draft model took for each sequence, in
        forwards that they shared.

        A draft forward runs behind a target's, which has emptied the caches, and takes longer than is measured of it.
        While there are none that is forgotten, or a busy moment might silence the draft model for good.
        """
        self._host.note_step(host, self._harvest)
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
        forward, alone, host = self._forward, self._draft_forward, self._host
        experts = forward.experts and replace(forward.experts, novelty=median(self._novelties))
        self.curve = replace(
            forward,
            base=forward.base + host.plain,
            harvest=self._harvest,
            experts=experts,
            tree=host.tree,
            probe=host.probe,
        )
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
