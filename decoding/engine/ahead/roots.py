"""Who runs in a step that is launched before the last one is collected: those whose next root that one draws.

Nothing of such a step depends on what is drawn. Where something would, or somebody else could join, there is none, and
the next step is planned once all is known. Who has ended by then runs in vain: what is drawn for it is dropped.
Invariant: between such a step's launch and its end nobody is admitted, and nobody gives up its blocks but by ending.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.kv_store import KvStore
from decoding.core.tree import IntArray
from decoding.engine.ahead.batch import following
from decoding.engine.scheduler import Reuse, Scheduler
from decoding.engine.sequence_step import SequenceStep
from decoding.model.device.runner import Forward
from decoding.sampling.step_sampler import Drawing

MOST_IN_TURN = 16  # steps that follow each other without a plan, while somebody waits for one


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way through the device. steps: of those who still run. reuse: of the prompts that it began."""

    steps: list[SequenceStep]
    batch: StepBatch
    forward: Forward
    drawing: Drawing
    reuse: Reuse

    def of_running(self) -> LaunchedStep | None:
        """The same of the steps whose sequences have not ended since; None if there are none."""
        steps = [step for step in self.steps if step.sequence.rows is not None]
        return self if len(steps) == len(self.steps) else replace(self, steps=steps) if steps else None


class Following(NamedTuple):
    """The step after one that is under way. places_B: of its sequences in that one; added_B: the block that each has
    been given since, -1 for none."""

    steps: list[SequenceStep]
    places_B: NDArray[np.int64]
    added_B: IntArray

    def batch_after(self, batch: StepBatch, drawn_B: torch.Tensor) -> StepBatch:
        """Of the step under way, and the tokens that it draws."""
        return following(batch, self.places_B, self.added_B, drawn_B)


class RootsAhead:
    """pool, store: of the sequences that `scheduler` runs."""

    def __init__(self, scheduler: Scheduler, pool: BlockPool, store: KvStore) -> None:
        self._scheduler, self._pool, self._store = scheduler, pool, store
        self._num_in_turn = 0  # steps without a plan between them

    def after(self, steps: list[SequenceStep]) -> Following | None:
        """The step after this one, which is under way; None if it is to be planned.

        Their rows of the step under way, which stay whatever is drawn, are committed.
        """
        is_due = self._num_in_turn >= MOST_IN_TURN
        following = None if self._is_planned_next(steps, is_due) else self._following(steps, is_due)
        self._num_in_turn = 0 if following is None else self._num_in_turn + 1
        return following

    def _following(self, steps: list[SequenceStep], is_due: bool) -> Following | None:
        lasting, added = list[SequenceStep](), list[int]()
        for step in steps:
            if not (_goes_on_plainly(step) and step.drafter.rests(is_due)):
                return None
            end, table = step.end + 1, step.table
            if end < step.sequence.request.max_total:
                block = -1
                if end > table.capacity:
                    if not self._pool.resize(table, end):
                        return None
                    block = int(table.blocks[-1])
                lasting.append(step)
                added.append(block)
        if not lasting:
            return None
        followers = [self._keep(step, place) for place, step in enumerate(lasting)]
        places_B = np.array([step.place for step in lasting], np.int64)
        return Following(followers, places_B, np.array(added, np.int32))

    def _keep(self, step: SequenceStep, place: int) -> SequenceStep:
        """Commit a step's rows, and let its blocks be found as soon as they are full: here a token later than where
        steps are planned. The step after it, at this place of a step of roots alone."""
        rows = step.rows
        self._store.commit_all(rows, len(step.chunk) + 1)
        step.is_kept = True
        if rows.length >= BLOCK_LEN * (rows.table.num_hashed + 1):
            self._pool.publish(rows.table, step.sequence.request.keys[: rows.length])
        return SequenceStep.ahead(step.sequence, rows.length, place)

    def _is_planned_next(self, steps: list[SequenceStep], is_due: bool) -> bool:
        """Whether others could run than these: who waits may find a place, or is to be considered anew, since others
        may by now hold so much that they have to make way."""
        scheduler = self._scheduler
        if scheduler.num_running != len(steps) or not scheduler.is_full:
            return True
        return is_due and scheduler.num_waiting > 0


def _goes_on_plainly(step: SequenceStep) -> bool:
    """Whether neither its next step nor what is still to be read of this one asks for its token, or for its logits,
    which the next forward overwrites."""
    if step.is_ahead:  # then it was so, and stays
        return True
    sequence, request = step.sequence, step.sequence.request
    is_plain = step.tree is not None and len(step.tree.tokens) == 1 and sequence.root_processors is None
    is_plain &= not sequence.pictures  # after which the places in the text may not be those that turn its rows
    return is_plain and request.speculation.trace is None and sequence.pooled is None and not sequence.scores_prompt
