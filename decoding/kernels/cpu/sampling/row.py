"""Compiled loops over one row of logits: its highest value and its place, and the sum of its exponentials.

Knows nothing of laws or requests. Invariant: no loop's order of summation depends on the number of rows, so a row gives
the same bits in any step.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.kernels.numba_kernel import kernel

EXPONENT_FLOOR = np.float32(-87.0)  # below it exp is not a normal float32
MASS_BLOCK = 1024
SEARCH_BLOCK = 256
ALL_BUT_SIGN = np.int32(0x7FFFFFFF)
KEY_OF_INFINITY, KEY_OF_MINUS_INFINITY = np.int32(0x7F800000), np.int32(0x807FFFFF - 2**32)


@nb.njit(cache=True, inline="always", fastmath={"contract", "nnan"})
def exp(x: np.float32) -> np.float32:
    """exp(x) for x <= 0, float32, without branches so that loops over it are vectorised."""
    y = max(x, EXPONENT_FLOOR) * np.float32(1.4426950408889634)
    whole = np.floor(y + np.float32(0.5))
    r = (y - whole) * np.float32(0.6931471805599453)
    p = np.float32(1 / 720) * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    power_of_two = np.int32((np.int32(whole) + 127) << 23).view(np.float32)
    return np.float32(p * power_of_two)


@nb.njit(cache=True, inline="always")
def key_of(bits: np.int32) -> np.int32:
    """An integer that sorts like the float32 with these bits, NaNs at both ends. The function is its own inverse."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & ALL_BUT_SIGN))


@kernel(borrows=True)
def highest_key(bits: NDArray[np.int32]) -> np.int32:
    """The highest `key_of` of a row; at least that of minus infinity."""
    most = KEY_OF_MINUS_INFINITY
    for token in range(len(bits)):
        most = max(most, key_of(bits[token]))
    return most


@kernel
def highest(row: NDArray[np.float32]) -> np.float32:
    """The highest value; NaN if one is NaN or plus infinity, or if all are minus infinity.

    The loop compares integers since a maximum of floats would not be vectorised.
    """
    bits = row.view(np.int32)
    most, least = KEY_OF_MINUS_INFINITY, KEY_OF_INFINITY
    for token in range(len(bits)):
        key = key_of(bits[token])
        most, least = max(most, key), min(least, key)
    if least < KEY_OF_MINUS_INFINITY or most >= KEY_OF_INFINITY or most == KEY_OF_MINUS_INFINITY:
        return np.float32(np.nan)
    return np.int32(key_of(most)).view(np.float32)


@kernel(borrows=True)
def first_at_least(row: NDArray[np.float32], value: np.float32) -> int:
    """The first token whose value is at least `value`; there must be one."""
    token = 0
    while num_at_least(row[token : token + SEARCH_BLOCK], value) == 0:
        token += SEARCH_BLOCK
    while row[token] < value:
        token += 1
    return token


@kernel
def tokens_at_least(row: NDArray[np.float32], value: np.float32) -> NDArray[np.int64]:
    """All tokens whose value is at least `value`, in order."""
    tokens = np.empty(num_at_least(row, value) + 1, np.int64)  # the last place is written to but not returned
    found = 0
    for start in range(0, len(row), SEARCH_BLOCK):
        block = row[start : start + SEARCH_BLOCK]
        if num_at_least(block, value) > 0:
            for place in range(len(block)):
                tokens[found] = start + place
                found += block[place] >= value
    return tokens[:found]


@kernel(borrows=True)
def num_at_least(block: NDArray[np.float32], value: np.float32) -> int:
    """How many values are at least `value`. A count is vectorised, unlike a search."""
    count = 0
    for token in range(len(block)):
        count += block[token] >= value
    return count


@kernel(borrows=True)
def mass(row: NDArray[np.float32], best: np.float32, scale: np.float32) -> float:
    """The sum of exp((row - best) * scale): float64 over blocks that are summed in float32."""
    total = 0.0
    for start in range(0, len(row), MASS_BLOCK):
        total += np.float64(_block_mass(row[start : start + MASS_BLOCK], best, scale))
    return total


@nb.njit(cache=True, fastmath={"contract", "nnan", "nsz", "reassoc"})
def _block_mass(block: NDArray[np.float32], best: np.float32, scale: np.float32) -> np.float32:
    """A function on a slice, since a loop that does not start at zero is not vectorised."""
    total = np.float32(0.0)
    for token in range(len(block)):
        total += exp((block[token] - best) * scale)
    return total
