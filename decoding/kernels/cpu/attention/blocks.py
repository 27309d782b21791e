"""One head's keys or values as blocks in memory, in the order of a block table; bfloat16 is staged as float32 first.

Addresses and steps are in bytes. Invariant: what is prefetched or staged beyond the last block is never read.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention.call_table import (
    ITEM_SIZE,
    KEY_DIM,
    KEYS,
    NUM_KV_HEADS,
    VALUE_DIM,
    LayerTable,
    address_of,
)
from decoding.kernels.cpu.attention.products import NUM_BLOCKS, Blocks
from decoding.kernels.cpu.attention.step_table import IntArray, Table
from decoding.kernels.cpu.attention.tile_scratch import Floats
from decoding.kernels.layout import BLOCK_LEN


@nb.njit(cache=True)
def _block_address(table: IntArray, source: Blocks, place: int) -> Any:
    return source.base + np.int64(table[min(place, source.last)]) * source.block_step


@nb.njit(cache=True)
def _ahead_address(table: IntArray, source: Blocks, place: int) -> Any:
    """The address to prefetch for a place: its block's, or beyond the last block, that of the plane read next."""
    if place <= source.last:
        return _block_address(table, source, place)
    return source.then + np.int64(table[min(place - source.last - 1, source.last)]) * source.then_step


@nb.njit(cache=True)
def stage(table: IntArray, first: int, layer: LayerTable, source: Blocks, width: int, room: Floats) -> Blocks:
    """Copy up to `NUM_BLOCKS` blocks as float32 to `room`, where kernels may read a little beyond a row's end."""
    size = BLOCK_LEN * width
    count = min(len(table) - first, NUM_BLOCKS)
    for place in range(count):
        address = _block_address(table, source, first + place)
        target = address_of(room) + 4 * size * place
        if layer.integers[ITEM_SIZE] == 2:
            lanes.widen(address, _ahead_address(table, source, first + place + NUM_BLOCKS), width, target)
        else:
            lanes.copy_bytes(target, address, 4 * size)
    start, step = address_of(room), 4 * size
    return Blocks(address_of(layer.counting), count - 1, start, step, source.row_step, start, step)


@nb.njit(cache=True)
def plane_of(layer: Table, plane: int, head: int) -> tuple[int, int]:
    """The address of a head's part of block 0 in a plane [B, H, 16 x width], and the bytes from block to block."""
    width = layer[KEY_DIM] if plane == KEYS else layer[VALUE_DIM]
    size = BLOCK_LEN * width * layer[ITEM_SIZE]
    return layer[plane] + head * size, layer[NUM_KV_HEADS] * size


@nb.njit(cache=True)
def head_blocks(table: IntArray, width: int, part: tuple[int, int], then: tuple[int, int]) -> Blocks:
    """One head's part of a plane. part, then: of this plane and of the one read after it, as from `_plane`. width: of
    the plane; the step between rows is that of float32, as bfloat16 is staged first."""
    return Blocks(address_of(table), len(table) - 1, part[0], part[1], 4 * width, then[0], then[1])


@nb.njit(cache=True)
def columns(blocks: Blocks, first: int) -> Blocks:
    """The same blocks of float32, from column `first` on."""
    base, then = blocks.base + 4 * first, blocks.then + 4 * first
    return Blocks(blocks.table, blocks.last, base, blocks.block_step, blocks.row_step, then, blocks.then_step)
