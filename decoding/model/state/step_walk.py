"""In which order a step's rows run through a recurrence, from which state and to which, the same for all its layers.

A sequence's certain rows lead from its state to its next one; its candidates are walked depth first, so that there is
one scratch state for each branch point of the current path. Pure arrays. Invariant: a row is walked after its parent,
and while the parent's state is still there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.state_pool import State
from decoding.kernels.cpu.states.order import ROW, Walk, inputs_of, lay_walk

# Shape suffixes: M rows of the step, B segments, W inputs that a convolution looks back at.


@dataclass(slots=True)
class StepWalk:
    """walk: int64 [M, 3], a row, and the places that its parent's state is in and its own goes to: places count
    `states`, and scratch states from -1 downwards. num_scratch: how many. candidates: int64, the rows that a commit may
    drop. windows: by W, the inputs that each row's convolution reads."""

    batch: StepBatch
    states: list[State]
    walk: Walk
    num_scratch: int
    candidates: NDArray[np.int64]
    windows: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def inputs(self, width: int) -> NDArray[np.int64]:
        """int64 [M, W + 1]: the inputs of each row and of its nearest ancestors, itself first. They count the segments'
        windows of W inputs each, oldest first, and after them the step's rows."""
        if width not in self.windows:
            batch = self.batch
            self.windows[width] = inputs_of(batch.offsets, batch.tree_offsets, batch.parents_P, width)
        return self.windows[width]


def walk_of(batch: StepBatch) -> StepWalk:
    states: list[State] = []
    first_places, marks, mark_offsets = [], [], [0]
    for state, _ in batch.carried:
        first_places.append(len(states))
        states += [state.front, state.back, *(mark.state for mark in state.marks)]
        marks += [mark.num_rows for mark in state.marks]
        mark_offsets.append(len(marks))
    num_certain = np.array([each.num_certain for each in batch.carried], np.int64)
    certain_rows = np.repeat(batch.offsets[:-1] + num_certain, np.diff(batch.offsets))
    candidates = np.flatnonzero(np.arange(batch.num_tokens) >= certain_rows)
    walk, num_scratch = lay_walk(
        batch.offsets,
        batch.tree_offsets,
        batch.parents_P,
        num_certain,
        np.array(first_places, np.int64),
        np.array(mark_offsets, np.int64),
        np.array(marks, np.int64),
    )
    return StepWalk(batch, states, walk, num_scratch, candidates)


def chain_walk(rows: NDArray[np.int64]) -> Walk:
    """A walk of these rows, one after the other, on the one state there is."""
    walk = np.zeros((len(rows), 3), np.int64)
    walk[:, ROW] = rows
    return walk
