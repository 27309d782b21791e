"""The candidates of a best-first tree: a binary heap in flat arrays, the likeliest on top.

Knows nothing of what a rank means. Invariant: every entry's chance is at least those of its heap children.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray


class Frontier(NamedTuple):
    """chances: float32 [m]; parents, ranks: int32 [m], the node to extend and by which candidate; size: int32 [1]."""

    chances: NDArray[np.float32]
    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]
    size: NDArray[np.int32]


def allocate(num_candidates: int) -> Frontier:
    return Frontier(
        np.zeros(num_candidates, np.float32),
        np.zeros(num_candidates, np.int32),
        np.zeros(num_candidates, np.int32),
        np.zeros(1, np.int32),
    )


@nb.njit(cache=True)
def _write(heap: Frontier, slot: int, chance: float, parent: int, rank: int) -> None:
    heap.chances[slot] = chance
    heap.parents[slot] = parent
    heap.ranks[slot] = rank


@nb.njit(cache=True)
def push(heap: Frontier, chance: float, parent: int, rank: int) -> None:
    slot = heap.size[0]
    heap.size[0] = slot + 1
    while slot > 0:
        above = (slot - 1) // 2
        if heap.chances[above] >= chance:
            break
        _write(heap, slot, heap.chances[above], heap.parents[above], heap.ranks[above])
        slot = above
    _write(heap, slot, chance, parent, rank)


@nb.njit(cache=True)
def pop(heap: Frontier) -> tuple[float, int, int]:
    """Take the likeliest candidate of a heap that is not empty: (chance, parent, rank)."""
    top = heap.chances[0], heap.parents[0], heap.ranks[0]
    size = heap.size[0] - 1
    heap.size[0] = size
    chance = heap.chances[size]
    slot = 0
    while True:
        below = 2 * slot + 1
        if below >= size:
            break
        if below + 1 < size and heap.chances[below + 1] > heap.chances[below]:
            below += 1
        if heap.chances[below] <= chance:
            break
        _write(heap, slot, heap.chances[below], heap.parents[below], heap.ranks[below])
        slot = below
    _write(heap, slot, chance, heap.parents[size], heap.ranks[size])
    return top
