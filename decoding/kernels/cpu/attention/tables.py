"""Fills the integer tables of a step: its segments, its tiles, and the fields of a call that all layers share.

Invariant: who passes arrays here keeps them alive while their addresses are in use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.kernels.cpu.attention.call_table import (
    MOST_NODES,
    NUM_FIELDS,
    NUM_NODES,
    NUM_SEGMENTS,
    NUM_SLOTS,
    NUM_TABLE_BLOCKS,
    NUM_TILES,
    PARENTS,
    POSITIONS,
    ROOM_WORDS,
    SCRATCH,
    SEGMENTS,
    TABLES,
    TILES,
    WRITE_SLOTS,
)
from decoding.kernels.cpu.attention.step_table import (
    FIRST_BLOCK,
    FIRST_NODE,
    FIRST_ROW,
    IS_CHAIN,
    NUM_ROWS,
    NUM_WRITTEN,
    PREFIX_LEN,
    TILE_FIRST,
    TILE_PAIRS,
    TILE_SEGMENT,
    IntArray,
    StepTable,
    Table,
)
from decoding.kernels.cpu.attention.tile_scratch import MOST_PAIRS
from decoding.kernels.numba_kernel import kernel

FEW_PAIRS, MANY = 32, 2048  # a tile's pairs, unless a segment has so many that every thread has tiles enough


class SegmentColumns(NamedTuple):
    """Fields of a `StepBatch`, under the same names."""

    table_offsets: IntArray
    prefix_lens: IntArray
    offsets: IntArray
    is_chain: NDArray[np.bool_]
    tree_offsets: IntArray
    num_written: IntArray


@kernel
def fill_segments(columns: SegmentColumns) -> tuple[Table, int, int]:
    """The segments; the most keys of one; and the most nodes of a tree, with those of earlier forwards."""
    num_segments, num_keys, num_nodes = len(columns.prefix_lens), 0, 0
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
        if not columns.is_chain[segment]:
            num_nodes = max(num_nodes, tree_size)
    return segments, num_keys, num_nodes


@kernel(borrows=True)
def _most_pairs(num_pairs: int) -> int:
    """Of a tile, where a segment has `num_pairs`."""
    return FEW_PAIRS if num_pairs < MANY else MOST_PAIRS


@kernel
def make_tiles(segments: Table, group: int) -> Table:
    """int64 [T, 3]: tiles of all (row, head) pairs of every segment, for one kv head."""
    num_tiles = 0
    for segment in range(len(segments)):
        num_pairs = segments[segment, NUM_ROWS] * group
        most = _most_pairs(num_pairs)
        num_tiles += (num_pairs + most - 1) // most
    tiles = np.empty((num_tiles, 3), np.int64)
    tile = 0
    for segment in range(len(segments)):
        num_pairs = segments[segment, NUM_ROWS] * group
        most = _most_pairs(num_pairs)
        for first in range(0, num_pairs, most):
            tiles[tile, TILE_SEGMENT] = segment
            tiles[tile, TILE_FIRST] = first
            tiles[tile, TILE_PAIRS] = min(most, num_pairs - first)
            tile += 1
    return tiles


@kernel
def step_fields(step: StepTable, scratch: NDArray[np.float32], num_nodes: int) -> Table:
    """The fields with the addresses and lengths of a step's arrays. num_nodes: the most of a tree."""
    fields = np.empty(NUM_FIELDS, np.int64)
    fields[SEGMENTS], fields[NUM_SEGMENTS] = step.segments.ctypes.data, len(step.segments)
    fields[TILES], fields[NUM_TILES] = step.tiles.ctypes.data, len(step.tiles)
    fields[TABLES], fields[NUM_TABLE_BLOCKS] = step.blocks_T.ctypes.data, len(step.blocks_T)
    fields[WRITE_SLOTS], fields[NUM_SLOTS] = step.write_slots_M.ctypes.data, len(step.write_slots_M)
    fields[PARENTS], fields[POSITIONS] = step.parents_P.ctypes.data, step.positions_P.ctypes.data
    fields[NUM_NODES] = len(step.parents_P)
    fields[SCRATCH], fields[ROOM_WORDS] = scratch.ctypes.data, scratch.shape[1]
    fields[MOST_NODES] = num_nodes
    return fields[SEGMENTS:]
