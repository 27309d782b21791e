"""The largest of some numbers, in order: one small sort for all compiled code.

Numba's own is quicker by a microsecond, and takes a second to compile wherever it is used.

Invariant: of equal numbers the earlier comes first.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray


@nb.njit(cache=True)
def ranked(numbers: NDArray[Any]) -> NDArray[np.int32]:
    """int32 [n]: the places of `numbers`, the largest first; a merge sort from runs of one upwards."""
    count = len(numbers)
    order, merged = np.empty(count, np.int32), np.empty(count, np.int32)
    for place in range(count):
        order[place] = place
    width = 1
    while width < count:
        for first in range(0, count, 2 * width):
            middle, end = min(first + width, count), min(first + 2 * width, count)
            left, right = first, middle
            for place in range(first, end):
                if left < middle and (right == end or numbers[order[left]] >= numbers[order[right]]):
                    merged[place] = order[left]
                    left += 1
                else:
                    merged[place] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order


@nb.njit(cache=True)
def places_of_best(numbers: NDArray[Any], num_best: int) -> NDArray[np.int32]:
    """int32, ascending: the places of the `num_best` largest, of all if there are fewer."""
    has_all = num_best >= len(numbers)
    is_best = np.zeros(len(numbers), np.bool_)
    if not has_all:
        for place in ranked(numbers)[: max(0, num_best)]:
            is_best[place] = True
    places, count = np.empty(len(numbers), np.int32), 0
    for place in range(len(numbers)):
        if has_all or is_best[place]:
            places[count] = place
            count += 1
    return places[:count]
