"""Moves numbers between the model's tensors and scratch, each float32 or bfloat16, and the cache, of any format."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention.call_table import (
    FORMAT,
    GROUP,
    ITEM,
    KEY,
    KEY_DIM,
    KEY_HEAD,
    KEY_ROW,
    KEYS,
    NUM_KV_HEADS,
    OUT,
    QUERY,
    QUERY_HEAD,
    QUERY_ROW,
    VALUE,
    VALUE_DIM,
    VALUE_HEAD,
    VALUE_ROW,
    VALUES,
)
from decoding.kernels.cpu.attention.formats import (
    E4M3,
    FLOAT16,
    FP8,
    HALF,
    INT8,
    NO_NUMBER,
    float_of,
    item_size,
    round_small,
    row_width,
    scale_of,
)
from decoding.kernels.cpu.attention.products import SOME
from decoding.kernels.cpu.attention.step_table import Table
from decoding.kernels.cpu.attention.tile import Tile
from decoding.kernels.cpu.attention.tile_scratch import address_of, fill, round_up, sum_widths
from decoding.kernels.cpu.attention.weights import finish
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.layout import BLOCK_LEN, SCALE_BYTES, SCALED
from decoding.kernels.numba_kernel import kernel


@kernel(borrows=True)
def _copy_number(source: int, from_item: int, target: int, to_item: int) -> None:
    """Copy a number; bfloat16 is the nearest, ties to even."""
    if from_item == to_item == 2:
        lanes.store_half(target, lanes.load_half(source))
    elif from_item == 2:
        lanes.store_word(target, np.uint32(lanes.load_half(source)) << np.uint32(16))
    else:
        bits = lanes.load_word(source)
        if to_item == 4:
            lanes.store_word(target, bits)
        else:
            bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            lanes.store_half(target, np.uint16(bits >> np.uint32(16)))


@kernel
def _number_at(source: int, item: int) -> Any:
    """A float32 or bfloat16 as float32."""
    return float_of(lanes.load_word(source) if item == 4 else np.uint32(lanes.load_half(source)) << np.uint32(16))


@kernel
def _store_scaled(source: int, item: int, width: int, target: int, step: int) -> None:
    """Write codes of int8, then the bytes of their scales."""
    place = target + step * width
    for first in range(0, width, SCALED):
        end, largest, is_finite = min(first + SCALED, width), np.float32(0), True
        for column in range(first, end):
            size = abs(_number_at(source + item * column, item))
            is_finite &= size < np.float32(np.inf)
            largest = max(largest, size)
        bits = scale_of(largest) if is_finite else NO_NUMBER
        scale = float_of(bits << 16)
        for column in range(first, end):
            code = np.rint(_number_at(source + item * column, item) / scale) if scale > 0 else np.float32(0)
            lanes.store_byte(target + step * column, np.uint8(np.int32(code)))
        for byte in range(SCALE_BYTES):
            lanes.store_byte(place + step * byte, np.uint8((bits >> (8 * byte)) & 255))
        place += step * SCALE_BYTES


@kernel
def _store_row(source: int, item: int, width: int, target: int, step: int, kind: int) -> None:
    """Write a row of `width` numbers of `item` bytes to columns that are `step` bytes apart."""
    if kind == INT8:
        _store_scaled(source, item, width, target, step)
    else:
        for column in range(width):
            place, number = target + step * column, source + item * column
            if kind == FLOAT16:
                lanes.store_half(place, np.uint16(round_small(_number_at(number, item), HALF)))
            elif kind == FP8:
                lanes.store_byte(place, np.uint8(round_small(_number_at(number, item), E4M3)))
            else:
                _copy_number(number, item, place, item_size(kind))


@kernel(borrows=True)
def store_head(call: Table, layer: Table, write_slots_M: Table, head: int) -> None:
    """Write the step's keys and values of one kv head to their slots."""
    given, kind, key_dim, value_dim = call[ITEM], layer[FORMAT], layer[KEY_DIM], layer[VALUE_DIM]
    item, key_width, value_width = item_size(kind), row_width(kind, key_dim), row_width(kind, value_dim)
    for row in range(len(write_slots_M)):
        block, place = divmod(write_slots_M[row], BLOCK_LEN)
        first = (block * layer[NUM_KV_HEADS] + head) * BLOCK_LEN
        source = call[KEY] + head * call[KEY_HEAD] + row * call[KEY_ROW]
        target = layer[KEYS] + (first * key_width + place) * item
        _store_row(source, given, key_dim, target, item * BLOCK_LEN, kind)
        source = call[VALUE] + head * call[VALUE_HEAD] + row * call[VALUE_ROW]
        target = layer[VALUES] + (first + place) * value_width * item
        _store_row(source, given, value_dim, target, item, kind)


@kernel
def load_queries(call: Table, tile: Tile) -> None:
    """Load queries, float32 or pairs of bfloat16, with zeros for the pairs by which a kernel's group exceeds the
    tile."""
    layer, queries = tile.layer.integers, tile.rooms.queries
    group, width, item = layer[GROUP], layer[KEY_DIM], call[ITEM]
    step = round_up(width, LANES)
    fill(queries, 0, round_up(tile.num_pairs, SOME) * step, np.float32(0))
    for place in range(tile.num_pairs):
        pair, target = tile.first_pair + place, address_of(queries) + 4 * place * step
        source = call[QUERY] + (tile.head * group + pair % group) * call[QUERY_HEAD]
        source += (tile.first_row + pair // group) * call[QUERY_ROW]
        to_item = 2 if tile.is_in_pairs else 4
        for column in range(width):
            _copy_number(source + item * column, item, target + to_item * column, to_item)


@kernel
def save(call: Table, tile: Tile) -> None:
    """Divide the weighted sums by the weights' totals and write them to the result."""
    layer, sums = tile.layer.integers, tile.rooms.sums
    group, width, item = layer[GROUP], layer[VALUE_DIM], call[ITEM]
    padded, step = sum_widths(width)
    for place in range(tile.num_pairs):
        pair, total = tile.first_pair + place, np.float32(0)
        for lane in range(LANES):
            total += sums[place * step + padded + lane]
        row: Any = address_of(sums) + 4 * place * step
        finish(row, padded // LANES, total)
        if item == 2:
            lanes.narrow(row, padded // LANES, row)
        number = (tile.first_row + pair // group) * layer[NUM_KV_HEADS] * group + tile.head * group + pair % group
        lanes.copy_bytes(call[OUT] + number * width * item, row, width * item)
