"""What an entry knew and what a row now says, on their way to the entry's new ranking.

Owns the weighing, the ranking and the cut to ten. Does not know why a row gets its share.
Invariant: what is kept is in falling order of weight, padded with token -1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays


class Merged(NamedTuple):
    """Room for the successors of both sides: ids int32 and weights float32 [2 K]."""

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]


@kernel(forceinline=True)
def allocate_merged() -> Merged:
    return Merged(np.empty(2 * NUM_SUCCESSORS, np.int32), np.empty(2 * NUM_SUCCESSORS, np.float32))


@kernel(borrows=True)
def blend(
    table: SuccessorArrays,
    entry: int,
    new_ids: NDArray[np.int32],
    new_probabilities: NDArray[np.float32],
    share: np.float32,
    merged: Merged,
) -> None:
    """Let a row have `share` of an entry, what it held the rest, and keep the ten heaviest."""
    size = _merge(table, entry, new_ids, new_probabilities, share, merged)
    _keep_best(table, entry, merged, _rank(merged, size))


@kernel(borrows=True)
def _merge(
    table: SuccessorArrays,
    entry: int,
    new_ids: NDArray[np.int32],
    new_probabilities: NDArray[np.float32],
    share: np.float32,
    merged: Merged,
) -> int:
    """Weigh an entry's successors by 1 - share and the new ones by share, in that order; return how many there are.

    An id that one side lacks has weight zero there. share 1: what the entry holds is not looked at.
    """
    ids, weights = merged
    num_old = 0
    if share < 1:
        while num_old < NUM_SUCCESSORS and table.ids[entry, num_old] != NO_TOKEN:
            ids[num_old] = table.ids[entry, num_old]
            weights[num_old] = table.probabilities[entry, num_old] * (1 - share)
            num_old += 1
    size = num_old
    for rank in range(min(len(new_ids), NUM_SUCCESSORS)):
        slot = 0
        while slot < num_old and ids[slot] != new_ids[rank]:
            slot += 1
        if slot == num_old:
            slot = size
            ids[slot], weights[slot] = new_ids[rank], 0.0
            size += 1
        weights[slot] += share * new_probabilities[rank]
    return size


@kernel(borrows=True)
def _rank(merged: Merged, size: int) -> int:
    """Sort by falling weight, of two that weigh the same the earlier first; return how many weigh anything."""
    ids, weights = merged
    for index in range(1, size):
        token, weight = ids[index], weights[index]
        slot = index
        while slot > 0 and weights[slot - 1] < weight:
            ids[slot], weights[slot] = ids[slot - 1], weights[slot - 1]
            slot -= 1
        ids[slot], weights[slot] = token, weight
    while size > 0 and weights[size - 1] <= 0:
        size -= 1
    return size


@kernel(borrows=True)
def _keep_best(table: SuccessorArrays, entry: int, merged: Merged, size: int) -> None:
    """Write the first ten of `size` ranked successors into an entry."""
    for slot in range(NUM_SUCCESSORS):
        table.ids[entry, slot] = merged.ids[slot] if slot < size else NO_TOKEN
        table.probabilities[entry, slot] = merged.weights[slot] if slot < size else 0.0
