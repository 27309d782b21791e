"""Moves numbers between the model's tensors, the cache and scratch, each of which is float32 or bfloat16."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention.call_table import (
    GROUP,
    ITEM,
    ITEM_SIZE,
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
from decoding.kernels.cpu.attention.products import SOME
from decoding.kernels.cpu.attention.step_table import Table
from decoding.kernels.cpu.attention.tile import Tile
from decoding.kernels.cpu.attention.tile_scratch import address_of, fill, round_up, sum_widths
from decoding.kernels.cpu.attention.weights import finish
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.layout import BLOCK_LEN


@nb.njit(cache=True)
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


@nb.njit(cache=True)
def store_head(call: Table, layer: Table, write_slots_M: Table, head: int) -> None:
    """Write the step's keys and values of one kv head to their slots."""
    given, item, key_dim, value_dim = call[ITEM], layer[ITEM_SIZE], layer[KEY_DIM], layer[VALUE_DIM]
    for row in range(len(write_slots_M)):
        block, place = divmod(write_slots_M[row], BLOCK_LEN)
        first = (block * layer[NUM_KV_HEADS] + head) * BLOCK_LEN
        source = call[KEY] + head * call[KEY_HEAD] + row * call[KEY_ROW]
        target = layer[KEYS] + (first * key_dim + place) * item
        for column in range(key_dim):
            _copy_number(source + given * column, given, target + item * BLOCK_LEN * column, item)
        source = call[VALUE] + head * call[VALUE_HEAD] + row * call[VALUE_ROW]
        target = layer[VALUES] + (first + place) * value_dim * item
        for column in range(value_dim):
            _copy_number(source + given * column, given, target + item * column, item)


@nb.njit(cache=True)
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


@nb.njit(cache=True)
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
