"""The compiled half of exact attention: one call per layer stores a step's keys and values, then attends.

Integer tables hold addresses and sizes, see `call_table` and `step_table`. Threads share heads to store, then tiles.
Invariant: tiles, blocks and threads cannot change a pair's result.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention.call_table import (
    COUNTER,
    ITEM_SIZE,
    KEY,
    KEY_DIM,
    KEY_HEAD,
    KEY_ROW,
    KEYS,
    NUM_FIELDS,
    NUM_KV_HEADS,
    ROOM_WORDS,
    ROOMS_TAKEN,
    SCRATCH,
    STORED,
    VALUE,
    VALUE_DIM,
    VALUE_HEAD,
    VALUE_ROW,
    VALUES,
    address_of,
    layer_of,
    step_of,
)
from decoding.kernels.cpu.attention.step_table import Table
from decoding.kernels.cpu.attention.tile import attend_tile
from decoding.kernels.layout import BLOCK_LEN


@nb.njit(cache=True)
def _store_head(call: Table, layer: Table, write_slots_M: Table, head: int) -> None:
    """Write the step's keys and values of one kv head to their slots."""
    item, key_dim, value_dim = layer[ITEM_SIZE], layer[KEY_DIM], layer[VALUE_DIM]
    for row in range(len(write_slots_M)):
        block, place = divmod(write_slots_M[row], BLOCK_LEN)
        first = (block * layer[NUM_KV_HEADS] + head) * BLOCK_LEN
        source = call[KEY] + head * call[KEY_HEAD] + row * call[KEY_ROW]
        target = layer[KEYS] + (first * key_dim + place) * item
        if item == 4:
            for column in range(key_dim):
                lanes.store_float(target + 4 * BLOCK_LEN * column, lanes.load_float(source + 4 * column))
        else:
            for column in range(key_dim):
                lanes.store_half(target + 2 * BLOCK_LEN * column, lanes.load_half(source + 2 * column))
        source = call[VALUE] + head * call[VALUE_HEAD] + row * call[VALUE_ROW]
        lanes.copy_bytes(layer[VALUES] + (first + place) * value_dim * item, source, value_dim * item)


@nb.njit(inline="always")
def _attend(call: Table) -> None:
    """One thread's share: heads to store, then tiles of heads, from the last tile to the first.

    Threads draw tickets from a shared counter, so that a thread which loses its core delays little. A thread draws its
    next ticket one tile early and prefetches those keys. All keys and values are stored before any tile attends.
    """
    table, step = layer_of(call), step_of(call)
    num_heads, num_tiles = table.integers[NUM_KV_HEADS], len(step.tiles)
    taken, stored = address_of(call) + 8 * COUNTER, address_of(call) + 8 * STORED
    room = call[ROOM_WORDS] * lanes.raise_counter(address_of(call) + 8 * ROOMS_TAKEN, 1)
    scratch = nb.carray(lanes.pointer(call[SCRATCH] + 4 * room, np.float32(0)), call[ROOM_WORDS])
    ticket = lanes.raise_counter(taken, 1)
    while ticket < num_heads:
        _store_head(call, table.integers, step.write_slots_M, ticket)
        lanes.raise_counter(stored, 1)
        ticket = lanes.raise_counter(taken, 1)
    while lanes.raise_counter(stored, 0) < num_heads:
        pass
    while ticket < num_heads + num_tiles * num_heads:
        head, tile = divmod(ticket - num_heads, num_tiles)
        ticket = lanes.raise_counter(taken, 1)
        next_head = min((ticket - num_heads) // num_tiles, num_heads - 1)
        attend_tile(call, table, step, (num_tiles - 1 - tile, head, next_head), scratch)


def attend(fields: Any) -> None:
    """One thread's share of a layer's call. fields: address of the call's fields."""
    _attend(nb.carray(fields, NUM_FIELDS))
