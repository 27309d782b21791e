"""A tile of one kv head while a thread works on it."""

from __future__ import annotations

from typing import NamedTuple

from decoding.kernels.cpu.attention.call_table import (
    CHUNK,
    FORMAT,
    GROUP,
    KEY_DIM,
    KEYS,
    NUM_KV_HEADS,
    VALUE_DIM,
    VALUES,
    WINDOW,
    LayerTable,
)
from decoding.kernels.cpu.attention.formats import BFLOAT16, item_size, row_width
from decoding.kernels.cpu.attention.products import HAS_PAIRS, Plane
from decoding.kernels.cpu.attention.step_table import (
    FIRST_BLOCK,
    FIRST_NODE,
    FIRST_ROW,
    IS_CHAIN,
    NUM_WRITTEN,
    PREFIX_LEN,
    TILE_FIRST,
    TILE_PAIRS,
    TILE_SEGMENT,
    IntArray,
    StepTable,
    Table,
)
from decoding.kernels.cpu.attention.tile_scratch import (
    WHOLE,
    Floats,
    Rooms,
    address_of,
    make_rooms,
    score_width,
)
from decoding.kernels.layout import BLOCK_LEN
from decoding.kernels.numba_kernel import kernel


class Tile(NamedTuple):
    """num_pairs: (row, head) pairs from `first_pair` of the segment's on; first_row: the segment's, in the step.
    first_node: the tree's node that is row 0 of the segment.

    table: the segment's blocks, in which a key's place is its slot. parents, positions: of the segment's nodes.
    next_keys: those that the thread reads next. is_in_pairs: whether products are of pairs of bfloat16.
    """

    layer: LayerTable
    rooms: Rooms
    head: int
    first_pair: int
    num_pairs: int
    first_row: int
    first_node: int
    prefix_len: int
    is_chain: bool
    is_in_pairs: bool
    table: IntArray
    parents: IntArray
    positions: Table
    keys: Plane
    values: Plane
    next_keys: Plane
    score_width: int


@kernel
def _plane(layer: Table, plane: int, head: int, table: IntArray) -> Plane:
    """A head's part of a plane [B, H, 16 rows]."""
    width = row_width(layer[FORMAT], layer[KEY_DIM] if plane == KEYS else layer[VALUE_DIM])
    size = BLOCK_LEN * width * item_size(layer[FORMAT])
    return Plane(address_of(table), layer[plane] + head * size, layer[NUM_KV_HEADS] * size)


@kernel
def make_tile(layer: LayerTable, step: StepTable, task: tuple[int, int, int], num_nodes: int, scratch: Floats) -> Tile:
    """task: the tile's number, a kv head, and the head that the thread takes next. num_nodes: the most of a tree."""
    number, head, next_head = task
    columns, integers = step.tiles[number], layer.integers
    segment = step.segments[columns[TILE_SEGMENT]]
    table = step.blocks_T[segment[FIRST_BLOCK] :]
    is_chain = segment[IS_CHAIN] != 0
    return Tile(
        layer,
        make_rooms(num_nodes, integers[KEY_DIM], integers[VALUE_DIM], scratch),
        head,
        columns[TILE_FIRST],
        columns[TILE_PAIRS],
        segment[FIRST_ROW],
        segment[NUM_WRITTEN],
        segment[PREFIX_LEN],
        is_chain,
        HAS_PAIRS and integers[FORMAT] == BFLOAT16,
        table,
        step.parents_P[segment[FIRST_NODE] :],
        step.positions_P[segment[FIRST_NODE] :],
        _plane(integers, KEYS, head, table),
        _plane(integers, VALUES, head, table),
        _plane(integers, KEYS, next_head, table),
        score_width(0 if is_chain else num_nodes),
    )


@kernel(borrows=True)
def node_of(tile: Tile, pair: int) -> int:
    """The node of a pair of the tile."""
    return tile.first_node + (tile.first_pair + pair) // tile.layer.integers[GROUP]


@kernel(borrows=True)
def first_visible(layer: Table, position: int) -> int:
    """The first position that a row at `position` may see."""
    first = max(0, position - layer[WINDOW] + 1) if layer[WINDOW] > 0 else 0
    return max(first, position // layer[CHUNK] * layer[CHUNK]) if layer[CHUNK] > 0 else first


@kernel(borrows=True)
def slot_range(tile: Tile) -> tuple[int, int]:
    """The range of the segment's slots that holds all keys that the tile's rows may see, from a multiple of
    `WHOLE` on."""
    first, last = node_of(tile, 0), node_of(tile, tile.num_pairs - 1)
    end = tile.prefix_len + last + 1
    start = end
    for node in range(first, last + 1):
        start = min(start, first_visible(tile.layer.integers, tile.positions[node]))
    if not tile.is_chain:  # only the prefix is stored by position
        start = min(start, tile.prefix_len)
    return start // WHOLE * WHOLE, end
