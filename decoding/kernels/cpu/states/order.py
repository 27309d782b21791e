"""Lays the order in which a step's rows run through a recurrence, and the inputs that its convolutions look back at.

Invariant: a row is walked after its parent, and while the parent's state is still there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

# Shape suffixes: P nodes of all trees.
ROW, SOURCE, TARGET = range(3)  # columns of a walk
IntArray = NDArray[np.int32]
Walk = NDArray[np.int64]


@kernel
def lay_walk(
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


@kernel
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


@kernel
def inputs_of(offsets: IntArray, tree_offsets: IntArray, parents_P: IntArray, width: int) -> NDArray[np.int64]:
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
