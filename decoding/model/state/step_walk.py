"""In which order a step's rows run through a recurrence, from which state and to which, the same for all its layers.

A sequence's certain rows lead from its state to its next one; its candidates are walked depth first, so that there is
one scratch state for each branch point of the current path. Pure arrays. Invariant: a row is walked after its parent,
and while the parent's state is still there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.state_pool import State
from decoding.core.tree import IntArray

# Shape suffixes: M rows of the step, B segments, W inputs that a convolution looks back at.
ROW, SOURCE, TARGET = range(3)  # columns of a walk
Walk = NDArray[np.int64]


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
            self.windows[width] = _inputs(batch.offsets, batch.tree_offsets, batch.parents_P, width)
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
    walk, num_scratch = _walk(
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


@nb.njit(cache=True)
def _walk(
    offsets: IntArray,
    tree_offsets: IntArray,
    parents_P: IntArray,
    num_certain: NDArray[np.int64],
    first_places: NDArray[np.int64],
    mark_offsets: NDArray[np.int64],
    marks: NDArray[np.int64],
) -> tuple[Walk, int]:
    walk = np.empty((offsets[-1], 3), np.int64)
    num_walked, num_scratch = 0, 0
    for segment in range(len(num_certain)):
        first, num_rows = np.int64(offsets[segment]), offsets[segment + 1] - offsets[segment]
        parents = parents_P[tree_offsets[segment] : tree_offsets[segment + 1]]
        place, back = first_places[segment], first_places[segment] + 1
        for row in range(num_certain[segment]):
            assert parents[row] == row - 1, "certain rows are a chain"
            target = back
            for mark in range(mark_offsets[segment], mark_offsets[segment + 1]):
                if marks[mark] == row + 1:
                    target = back + 1 + mark - mark_offsets[segment]
            walk[num_walked] = first + row, place, target
            place, num_walked = target, num_walked + 1
        pending = _children(parents, num_certain[segment])
        # Each entry: a row, the place of its parent's state, the first free scratch state, and whether it is the
        # parent's last child, which may write over that state.
        stack = np.empty((num_rows + 1, 4), np.int64)
        height = 0
        for child in pending[np.int64(num_rows)][::-1]:
            stack[height] = child, place, 0, 0
            height += 1
        while height:
            height -= 1
            row, source, num_taken, is_last = stack[height]
            if is_last and source < 0:
                target = source
            else:
                num_taken += 1
                target = -num_taken
                num_scratch = max(num_scratch, num_taken)
            walk[num_walked] = first + row, source, target
            num_walked += 1
            children = pending[row]
            for child in range(len(children) - 1, -1, -1):
                stack[height] = children[child], target, num_taken, np.int64(child == len(children) - 1)
                height += 1
    return walk, num_scratch


@nb.njit(cache=True)
def _children(parents: IntArray, num_certain: int) -> list[NDArray[np.int64]]:
    """The candidates among each row's children; after all rows, those that follow the certain ones."""
    num_rows = len(parents)
    found = [np.empty(0, np.int64) for _ in range(num_rows + 1)]
    for row in range(num_certain, num_rows):
        parent = np.int64(parents[row])
        assert parent >= num_certain - 1, "a candidate follows all certain rows"
        place = parent if parent >= num_certain else np.int64(num_rows)
        found[place] = np.append(found[place], np.int64(row))
    return found


@nb.njit(cache=True)
def _inputs(offsets: IntArray, tree_offsets: IntArray, parents_P: IntArray, width: int) -> NDArray[np.int64]:
    num_segments = len(offsets) - 1
    inputs = np.empty((offsets[-1], width + 1), np.int64)
    for segment in range(num_segments):
        first = np.int64(offsets[segment])
        parents = parents_P[tree_offsets[segment] : tree_offsets[segment + 1]]
        for row in range(len(parents)):
            node, num_above = np.int64(row), 0
            for place in range(width + 1):
                if node >= 0:
                    inputs[first + row, place] = num_segments * width + first + node
                    node = np.int64(parents[node])
                else:
                    num_above += 1
                    inputs[first + row, place] = (segment + 1) * width - num_above
    return inputs
