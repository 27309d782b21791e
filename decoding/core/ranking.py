"""A small merge sort for all compiled code: the places of the largest numbers.

Numba's own sort is a microsecond quicker, but takes a second to compile in each function that calls it.
Invariant: of equal numbers the earlier one comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel


@kernel
def ranked(numbers: NDArray[Any]) -> NDArray[np.int32]:
    """int32 [n]: the places of `numbers`, largest number first. A bottom-up merge sort."""
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


@kernel
def places_of_best(numbers: NDArray[Any], num_best: int) -> NDArray[np.int32]:
    """int32, ascending: the places of the `num_best` largest numbers, or of all numbers if there are fewer."""
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
