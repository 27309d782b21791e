"""A clock that only the engine's work moves, by what is given for it: no noise, and the same on every machine.

Owns the given costs. Prices, budgets and trees are the engine's own, which learns from these steps like from any.
Invariant: tokens are computed as ever; how long that takes counts nowhere.
"""

from __future__ import annotations

from contextlib import ExitStack
from operator import mul
from typing import NamedTuple
from unittest.mock import patch

from decoding.bench.variant import NONE
from decoding.cache.batch import StepBatch
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.costs.curve import CostCurve
from decoding.costs.step_fit import Beside
from decoding.drafting.registry import StartDrafter
from decoding.engine.engine import Engine
from decoding.engine.isolation import Isolation
from decoding.engine.parts import step_kind
from decoding.engine.scheduler import Task
from decoding.engine.sequence import SequencePart
from decoding.engine.tally import StepTally
from decoding.model.device.runner import Forward, silent
from decoding.model.target_model import TargetModel


class GivenCosts(NamedTuple):
    """Seconds. target, draft: of forwards; beside: of what steps have beside them; start: of a request that drafts."""

    target: CostCurve
    draft: CostCurve
    beside: Beside
    start: float


# By millions of parameters that gosling is widened to: rounded from fits on one thread of an EPYC of 2025 with AVX-512,
# bfloat16; those of a busy day are scaled to what the same forwards took on a quiet one.
_GOSLING = CostCurve(base=2.7e-4, row=3.8e-5, key=3e-8, head=4e-6, few=4, few_row=4e-6)
_WIDENED = CostCurve(base=7.2e-3, row=6.8e-4, key=1.2e-7, head=1e-5, few=6, few_row=7e-5)
_DRAFT = CostCurve(base=1.6e-4, row=8e-6, key=7e-9, head=2e-6, few=4, few_row=2e-6)  # of gosling's, behind a forward
_BESIDE = Beside(step=8e-5, request=2e-5, look=6e-5, tree=1.2e-4, node=3e-6, harvest=8e-6, round=5e-5)
GIVEN = {millions: GivenCosts(target, _DRAFT, _BESIDE, 1e-4) for millions, target in ((0, _GOSLING), (60, _WIDENED))}


class GivenClock(ExitStack):
    """Seconds, in place of `time.perf_counter` until it is left."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def __enter__(self) -> GivenClock:
        super().__enter__()
        self.enter_context(patch("time.perf_counter", self))
        return self

    def __call__(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += seconds

    def time_forwards(self, model: TargetModel, curve: CostCurve) -> None:
        """Let forwards of this model take what the curve says."""
        launch = model.launch

        def timed(batch: StepBatch) -> Forward:
            rows = (batch.offsets[1:] - batch.offsets[:-1]).tolist()
            without_logits = batch.num_tokens - len(batch.logit_rows_R)
            self.move(curve.step_seconds(rows, batch.prefix_lens.tolist()) - curve.head * without_logits)
            return launch(batch)

        self.enter_context(patch.object(model, "launch", timed))


class GivenEngine(Engine):
    """An engine by a given clock."""

    def __init__(
        self,
        model: TargetModel,
        config: EngineConfig,
        draft_model: TargetModel | None,
        costs: GivenCosts,
        clock: GivenClock,
    ) -> None:
        self._given, self._clock = costs, clock
        clock.time_forwards(model, costs.target)
        if draft_model is not None:
            clock.time_forwards(draft_model, costs.draft)
        super().__init__(model, config, silent, draft_model)

    def add(self, request: Request, start_drafter: StartDrafter | None = None) -> None:
        super().add(request, start_drafter)
        if request.speculation.method != NONE:
            self._clock.move(self._given.start)

    def _draft(self, tasks: list[Task], tally: StepTally, isolation: Isolation) -> list[SequencePart]:
        parts = super()._draft(tasks, tally, isolation)
        num_read = sum(part.num_chunk_logits for part in parts if part.num_top > 0)
        self._clock.move(self._given.beside.harvest * num_read)
        return parts

    def _note_costs(self, parts: list[SequencePart], seconds: float) -> None:
        step, *each = self._given.beside
        decoding = [part for part in parts if len(part.chunk) == 0]
        beside = step + sum(map(mul, step_kind(decoding), each))
        self._clock.move(beside)
        super()._note_costs(parts, seconds + beside)
