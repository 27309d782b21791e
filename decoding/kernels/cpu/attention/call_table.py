"""What a call of exact attention is told: the constants of a layer over its store, and the fields of a call.

Integer tables hold addresses and sizes; the constants below and in `step_table` name their columns. Addresses and
steps are in bytes. A row is a token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.attention.step_table import IntArray, Table


class LayerTable(NamedTuple):
    """One layer of one store. numbers: scaling, soft-cap, then one sink per query head if the layer has sinks.

    counting: int32, 0, 1, .. `NUM_BLOCKS` - 1, the block table of staged blocks.
    """

    integers: Table
    numbers: NDArray[np.float32]
    counting: IntArray


# Columns of a layer: addresses of its keys [B, H, D, 16] and values [B, H, 16, V], which are rows of a format of
# `formats`, sizes, masks. Widths are those of the numbers, whatever more columns a row has.
KEYS, VALUES, NUM_KV_HEADS, GROUP, KEY_DIM, VALUE_DIM, FORMAT, WINDOW, CHUNK, HAS_SINKS = range(10)
SCALING, SOFTCAP, FIRST_SINK = range(3)
# A call's fields, each an int64: addresses of the model's tensors, with their steps from head to head and from row to
# row, in bytes; OUT is [N, H, V], contiguous. Then the threads' shared counters (from 0), the layer, the step. ITEM is
# the size of a number in the model's tensors, MOST_NODES the nodes of the step's largest tree.
QUERY, OUT, _NUM_ROWS, COUNTER, STORED, ROOMS_TAKEN = range(6)
QUERY_HEAD, QUERY_ROW, KEY, KEY_HEAD, KEY_ROW, VALUE, VALUE_HEAD, VALUE_ROW, ITEM = range(6, 15)
LAYER, LAYER_NUMBERS, NUM_SINKS, COUNTING = range(15, 19)
SEGMENTS, NUM_SEGMENTS, TILES, NUM_TILES, TABLES, NUM_TABLE_BLOCKS, WRITE_SLOTS, NUM_SLOTS = range(19, 27)
PARENTS, POSITIONS, NUM_NODES, SCRATCH, ROOM_WORDS, MOST_NODES = range(27, 33)
NUM_FIELDS = 33
HEAD_STEPS = {QUERY: QUERY_HEAD, KEY: KEY_HEAD, VALUE: VALUE_HEAD}  # each is followed by the step from row to row
