"""What the exact kernel must know of a step: integer tables of its segments and of the tiles that share a pass.

A tile is up to `TILE_ROWS` (row, head) pairs of one request that share a kv head: the heads of a row side by side.
Invariant: tables hold where things lie and which rows are whose, never what a row's result depends on.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.attention.products import TILE_ROWS
from decoding.cache.batch import StepBatch
from decoding.core.tree import IntArray

Table = NDArray[np.int64]

# A segment: where its block table begins, committed tokens, its rows in the step, where its tree begins, and how
# many rows of the tree come before the step's.
FIRST_BLOCK, PREFIX_LEN, FIRST_ROW, NUM_ROWS, IS_CHAIN, FIRST_NODE, NUM_WRITTEN = range(7)
# A tile: its segment, its first (row, head) pair, how many.
TILE_SEGMENT, TILE_FIRST, TILE_PAIRS = range(3)


class StepTable(NamedTuple):
    """segments: int64 [B, 7]; tiles: int64 [T, 3], for one group size; the others as in `StepBatch`."""

    segments: Table
    tiles: Table
    blocks_T: IntArray
    write_slots_M: Table
    parents_P: IntArray
    positions_P: Table


class SegmentColumns(NamedTuple):
    """As in `StepBatch`."""

    table_offsets: IntArray
    prefix_lens: IntArray
    offsets: IntArray
    is_chain: NDArray[np.bool_]
    tree_offsets: IntArray
    num_written: IntArray


def make_segments(batch: StepBatch) -> tuple[Table, int]:
    """int64 [B, 7], see the column names above; the most keys that a row may have."""
    return _fill_segments(
        SegmentColumns(
            batch.table_offsets,
            batch.prefix_lens,
            batch.offsets,
            batch.is_chain,
            batch.tree_offsets,
            batch.num_written,
        )
    )


@nb.njit(cache=True)
def _fill_segments(columns: SegmentColumns) -> tuple[Table, int]:
    num_segments, num_keys = len(columns.prefix_lens), 0
    segments = np.empty((num_segments, 7), np.int64)
    for segment in range(num_segments):
        segments[segment, FIRST_BLOCK] = columns.table_offsets[segment]
        segments[segment, PREFIX_LEN] = columns.prefix_lens[segment]
        segments[segment, FIRST_ROW] = columns.offsets[segment]
        segments[segment, NUM_ROWS] = columns.offsets[segment + 1] - columns.offsets[segment]
        segments[segment, IS_CHAIN] = columns.is_chain[segment]
        segments[segment, FIRST_NODE] = columns.tree_offsets[segment]
        segments[segment, NUM_WRITTEN] = columns.num_written[segment]
        tree_size = columns.tree_offsets[segment + 1] - columns.tree_offsets[segment]
        num_keys = max(num_keys, columns.prefix_lens[segment] + tree_size)
    return segments, num_keys


@nb.njit(cache=True)
def make_tiles(segments: Table, group: int) -> Table:
    """int64 [T, 3]: the (row, head) pairs of every segment, for one kv head."""
    num_tiles = 0
    for segment in range(len(segments)):
        num_tiles += (segments[segment, NUM_ROWS] * group + TILE_ROWS - 1) // TILE_ROWS
    tiles = np.empty((num_tiles, 3), np.int64)
    tile = 0
    for segment in range(len(segments)):
        num_pairs = segments[segment, NUM_ROWS] * group
        for first in range(0, num_pairs, TILE_ROWS):
            tiles[tile, TILE_SEGMENT] = segment
            tiles[tile, TILE_FIRST] = first
            tiles[tile, TILE_PAIRS] = min(TILE_ROWS, num_pairs - first)
            tile += 1
    return tiles
