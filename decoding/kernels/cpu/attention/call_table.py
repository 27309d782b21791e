"""The table of a call of the exact kernel: the fields of the call, and the columns of a layer in a store.

Addresses and steps are in bytes. Each field is an int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention.products import NUM_BLOCKS
from decoding.kernels.cpu.attention.step_table import NUM_WRITTEN, TILE_PAIRS, IntArray, StepTable, Table
from decoding.kernels.cpu.attention.tile_scratch import Floats

# Columns of a layer: addresses of its keys [B, H, D, 16] and values [B, H, 16, V], sizes, masks. ITEM_SIZE is 4 for
# float32, 2 for bfloat16.
KEYS, VALUES, NUM_KV_HEADS, GROUP, KEY_DIM, VALUE_DIM, ITEM_SIZE, WINDOW, CHUNK, HAS_SINKS = range(10)
SCALING, SOFTCAP, FIRST_SINK = range(3)
# A call's fields, each an int64: addresses of the model's tensors, with their steps from head to head and from row to
# row, in bytes; OUT is [N, H, V], contiguous. Then the threads' shared counters (from 0), the layer, the step.
QUERY, OUT, _NUM_ROWS, COUNTER, STORED, ROOMS_TAKEN = range(6)
QUERY_HEAD, QUERY_ROW, KEY, KEY_HEAD, KEY_ROW, VALUE, VALUE_HEAD, VALUE_ROW = range(6, 14)
LAYER, LAYER_NUMBERS, NUM_SINKS, COUNTING = range(14, 18)
SEGMENTS, NUM_SEGMENTS, TILES, NUM_TILES, TABLES, NUM_TABLE_BLOCKS, WRITE_SLOTS, NUM_SLOTS = range(18, 26)
PARENTS, POSITIONS, NUM_NODES, SCRATCH, ROOM_WORDS = range(26, 31)
NUM_FIELDS = 31
HEAD_STEPS = {QUERY: QUERY_HEAD, KEY: KEY_HEAD, VALUE: VALUE_HEAD}  # each is followed by the step from row to row


class LayerTable(NamedTuple):
    """One layer of one store. numbers: scaling, soft-cap, then one sink per query head if the layer has sinks.

    counting: int32, 0, 1, .. `NUM_BLOCKS` - 1, the block table of staged blocks.
    """

    integers: Table
    numbers: Floats
    counting: IntArray


@nb.njit(cache=True)
def address_of(array: Any) -> Any:
    return np.int64(array.ctypes.data)  # signed: numba adds signed and unsigned as floats


@nb.njit(cache=True)
def layer_of(call: Table) -> LayerTable:
    return LayerTable(
        nb.carray(lanes.pointer(call[LAYER], np.int64(0)), HAS_SINKS + 1),
        nb.carray(lanes.pointer(call[LAYER_NUMBERS], np.float32(0)), FIRST_SINK + call[NUM_SINKS]),
        nb.carray(lanes.pointer(call[COUNTING], np.int32(0)), NUM_BLOCKS),
    )


@nb.njit(cache=True)
def step_of(call: Table) -> StepTable:
    return StepTable(
        nb.carray(lanes.pointer(call[SEGMENTS], np.int64(0)), (call[NUM_SEGMENTS], NUM_WRITTEN + 1)),
        nb.carray(lanes.pointer(call[TILES], np.int64(0)), (call[NUM_TILES], TILE_PAIRS + 1)),
        nb.carray(lanes.pointer(call[TABLES], np.int32(0)), call[NUM_TABLE_BLOCKS]),
        nb.carray(lanes.pointer(call[WRITE_SLOTS], np.int64(0)), call[NUM_SLOTS]),
        nb.carray(lanes.pointer(call[PARENTS], np.int32(0)), call[NUM_NODES]),
        nb.carray(lanes.pointer(call[POSITIONS], np.int64(0)), call[NUM_NODES]),
    )
