"""The layout of a thread's scratch, all float32, while the thread works on a tile.

A line for each (row, head) pair: queries [TILE_ROWS, D padded], scores [TILE_ROWS, keys padded], sums [TILE_ROWS, V
padded, then totals].
Invariant: what a kernel reads or writes beyond a line's numbers still lies in the same scratch.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.attention.products import NARROW, NUM_BLOCKS, TILE_ROWS, WIDE
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.layout import BLOCK_LEN

Floats = NDArray[np.float32]


@nb.njit(cache=True)
def round_up(number: int, multiple: int) -> int:
    return (number + multiple - 1) // multiple * multiple


@nb.njit(cache=True)
def score_width(num_keys: int) -> int:
    """float32 numbers per pair of scores: whole groups of blocks, plus one cache line so that pairs fall into different
    sets of the processor's cache."""
    return round_up(num_keys, NUM_BLOCKS * BLOCK_LEN) + LANES


@nb.njit(cache=True)
def sum_widths(value_dim: int) -> tuple[int, int]:
    """float32 numbers per pair of sums: without the totals, and with them (one total for each `WIDE` vectors)."""
    padded = round_up(value_dim, NARROW * LANES)
    return padded, padded + round_up(value_dim, WIDE * LANES) // (WIDE * LANES)


@nb.njit(cache=True)
def _room_sizes(key_dim: int, value_dim: int) -> tuple[int, int, int]:
    """float32 numbers of queries, sums and staged blocks. Kernels may read a little beyond the staged blocks."""
    sums = sum_widths(value_dim)[1] * TILE_ROWS
    return round_up(key_dim, LANES) * TILE_ROWS, sums, NUM_BLOCKS * BLOCK_LEN * max(key_dim, value_dim) + NARROW * LANES


@nb.njit(cache=True)
def scratch_words(num_keys: int, key_dim: int, value_dim: int) -> int:
    """The float32 numbers that one tile needs."""
    queries, sums, staged = _room_sizes(key_dim, value_dim)
    return queries + sums + staged + score_width(num_keys) * TILE_ROWS


class Rooms(NamedTuple):
    """The parts of a thread's scratch."""

    queries: Floats
    sums: Floats
    staged: Floats
    scores: Floats


@nb.njit(cache=True)
def make_rooms(key_dim: int, value_dim: int, scratch: Floats) -> Rooms:
    queries, sums, staged = _room_sizes(key_dim, value_dim)
    staged_at = queries + sums
    scores_at = staged_at + staged
    return Rooms(
        scratch[:queries],
        scratch[queries:staged_at],
        scratch[staged_at:scores_at],
        scratch[scores_at:],
    )


@nb.njit(cache=True)
def fill(numbers: Floats, start: int, end: int, number: float) -> None:
    """numbers[start:end] = number, without the cost of a slice."""
    for place in range(start, end):
        numbers[place] = number
