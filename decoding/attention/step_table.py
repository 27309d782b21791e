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


def make_segments(batch: StepBatch) -> Table:
    """int64 [B, 7], see the column names above."""
    columns = (
        batch.table_offsets[:-1],
        batch.prefix_lens,
        batch.offsets[:-1],
        np.diff(batch.offsets),
        batch.is_chain,
        batch.tree_offsets[:-1],
        batch.num_written,
    )
    return np.stack(columns, axis=1).astype(np.int64)


def make_step(batch: StepBatch, segments: Table, group: int) -> StepTable:
    """For the layers that have `group` query heads to a kv head."""
    tiles = make_tiles(segments, group)
    return StepTable(segments, tiles, batch.blocks_T, batch.write_slots_M, batch.parents_P, batch.positions_P)


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
