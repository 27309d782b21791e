"""The candidates of a best-first tree: a binary heap of packed numbers in one flat array, the likeliest on top.

Knows nothing of what a rank means. Invariant: heap[0] is the number of candidates, heap[1:] the heap;
of equal chances the earlier node goes first, then the lower rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

_CHANCE_SCALE = 2.0**30
_MOST_NODES = 2**20 - 1
_MOST_RANKS = 2**8 - 1


def allocate(num_nodes: int) -> NDArray[np.int64]:
    """An empty heap for a tree of `num_nodes`, each of which puts at most three candidates in."""
    return np.zeros(1 + 3 * num_nodes, np.int64)


@kernel(borrows=True)
def push(heap: NDArray[np.int64], chance: float, parent: int, rank: int) -> None:
    """Add the candidate `rank` (0 to 255) of node `parent`; chance is between 0 and 1."""
    packed = (np.int64(chance * _CHANCE_SCALE) << 28) | ((_MOST_NODES - parent) << 8) | (_MOST_RANKS - rank)
    slot = heap[0] + 1
    heap[0] = slot
    while slot > 1 and heap[slot // 2] < packed:
        heap[slot] = heap[slot // 2]
        slot //= 2
    heap[slot] = packed


@kernel(borrows=True)
def peek(heap: NDArray[np.int64]) -> float:
    """The chance of the likeliest candidate of a heap that is not empty."""
    return float((heap[1] >> 28) / _CHANCE_SCALE)


@kernel(borrows=True)
def pop(heap: NDArray[np.int64]) -> tuple[float, int, int]:
    """Take the likeliest candidate of a heap that is not empty: (chance, parent, rank)."""
    top = heap[1]
    size = heap[0] - 1
    last = heap[size + 1]
    heap[0] = size
    slot = 1
    while 2 * slot <= size:
        below = 2 * slot
        if below < size and heap[below + 1] > heap[below]:
            below += 1
        if heap[below] <= last:
            break
        heap[slot] = heap[below]
        slot = below
    heap[slot] = last
    return (top >> 28) / _CHANCE_SCALE, _MOST_NODES - ((top >> 8) & _MOST_NODES), _MOST_RANKS - (top & _MOST_RANKS)
