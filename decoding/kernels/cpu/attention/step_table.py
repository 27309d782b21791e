"""Integer tables that describe a step to the exact kernel: its segments, and the tiles that its work is cut into.

A tile is a few (row, head) pairs of one request that share a kv head and are computed in one pass over its
keys; a row is a token, and the heads of a row lie side by side.
Invariant: how rows are cut into tiles never changes a row's result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
Table = NDArray[np.int64]

# Columns of a segment: where its block table begins, committed tokens, its rows in the step, where its tree begins, and
# how many nodes of the tree come before the step's rows.
FIRST_BLOCK, PREFIX_LEN, FIRST_ROW, NUM_ROWS, IS_CHAIN, FIRST_NODE, NUM_WRITTEN = range(7)
# Columns of a tile: its segment, its first (row, head) pair, and how many pairs it has.
TILE_SEGMENT, TILE_FIRST, TILE_PAIRS = range(3)


class StepTable(NamedTuple):
    """segments: int64 [B, 7]. tiles: int64 [T, 3], for one number of query heads per kv head. Others: see
    `StepBatch`."""

    segments: Table
    tiles: Table
    blocks_T: IntArray
    write_slots_M: Table
    parents_P: IntArray
    positions_P: Table
