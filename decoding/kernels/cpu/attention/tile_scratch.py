"""The layout of a thread's scratch, all float32, while the thread works on a tile.

A line for each (row, head) pair: queries [MOST_PAIRS, D padded]; scores [MOST_PAIRS, keys of a range, and nodes of a
tree]; sums [MOST_PAIRS, V padded, sixteen totals, the largest score].
Invariant: what a kernel reads or writes beyond a line's numbers still lies in the same scratch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.attention.products import NARROW, NUM_BLOCKS
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.cpu.products.tiles import HAS_TILES, TILE_STEPS
from decoding.kernels.layout import BLOCK_LEN
from decoding.kernels.numba_kernel import kernel

Floats = NDArray[np.float32]
MOST_PAIRS = 128  # the most (token, head) pairs that share a pass over keys and values
# Keys that are scored, then weighed, then added. Ranges begin at multiples of it, so that all rows rescale their sums
# after the same keys.
RANGE = 256
# Numbers along a width, or keys from a multiple of it on, whose products join a sum in one go.
ADDED_AT_ONCE = 2 * TILE_STEPS if HAS_TILES else 2
WHOLE = max(BLOCK_LEN, ADDED_AT_ONCE)  # keys: slots are read from a multiple of it on, and weighed up to one


@kernel(borrows=True)
def round_up(number: int, multiple: int) -> int:
    return (number + multiple - 1) // multiple * multiple


@kernel(borrows=True)
def score_width(num_nodes: int) -> int:
    """float32 numbers per pair of scores: whole groups of blocks, plus one cache line so that pairs fall into different
    sets of the processor's cache. num_nodes: of a tree; 0 of a chain."""
    return round_up(RANGE + num_nodes, NUM_BLOCKS * BLOCK_LEN) + LANES


@kernel(borrows=True)
def sum_widths(value_dim: int) -> tuple[int, int]:
    """float32 numbers per pair of sums: without the totals, and with them and the largest score."""
    padded = round_up(value_dim, NARROW * LANES)
    return padded, padded + 2 * LANES


@kernel(borrows=True)
def _room_sizes(key_dim: int, value_dim: int) -> tuple[int, int, int, int]:
    """float32 numbers of queries, sums, staged blocks and a raw block. Kernels may read a little beyond the blocks."""
    block = BLOCK_LEN * (max(round_up(key_dim, LANES), value_dim) + 1) + NARROW * LANES
    return round_up(key_dim, LANES) * MOST_PAIRS, sum_widths(value_dim)[1] * MOST_PAIRS, NUM_BLOCKS * block, block


@kernel(borrows=True)
def _path_len(num_nodes: int) -> int:
    """The most places of a path, which may begin before the tree, where keys that are added in one go do."""
    return num_nodes + ADDED_AT_ONCE - 1


@kernel(borrows=True)
def scratch_words(num_nodes: int, key_dim: int, value_dim: int) -> int:
    """The float32 numbers that one tile needs. num_nodes: the most of a tree."""
    queries, sums, staged, raw = _room_sizes(key_dim, value_dim)
    return LANES + queries + sums + staged + raw + _path_len(num_nodes) + score_width(num_nodes) * MOST_PAIRS


class Rooms(NamedTuple):
    """The parts of a thread's scratch. shape: int64, at place 0 what the processor's tiles are shaped for (see
    `shape_tiles`), 0 for nothing. path: int32, the slots of a row's ancestors and its own."""

    shape: NDArray[np.int64]
    queries: Floats
    sums: Floats
    staged: Floats
    raw: Floats
    path: NDArray[np.int32]
    scores: Floats


@kernel
def make_rooms(num_nodes: int, key_dim: int, value_dim: int, scratch: Floats) -> Rooms:
    queries, sums, staged, raw = _room_sizes(key_dim, value_dim)
    sums_at = LANES + queries
    staged_at = sums_at + sums
    raw_at = staged_at + staged
    path_at = raw_at + raw
    scores_at = path_at + _path_len(num_nodes)
    return Rooms(
        scratch[:LANES].view(np.int64),
        scratch[LANES:sums_at],
        scratch[sums_at:staged_at],
        scratch[staged_at:raw_at],
        scratch[raw_at:path_at],
        scratch[path_at:scores_at].view(np.int32),
        scratch[scores_at:],
    )


@kernel(borrows=True)
def fill(numbers: Floats, start: int, end: int, number: float) -> None:
    """numbers[start:end] = number, without the cost of a slice."""
    for place in range(start, end):
        numbers[place] = number


@kernel
def address_of(array: Any) -> Any:
    return np.int64(array.ctypes.data)  # signed: numba adds signed and unsigned as floats
