"""The compiled half of exact attention: one call per layer stores a step's keys and values, then attends.

A row is a token. A tile's keys are read in ranges: scored, weighed, and their values added, before the next range.
Invariant: a pair of row and head adds its keys in the order of their positions, in ranges that begin at the same
positions everywhere, so tiles, trees, blocks and threads cannot change its result.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention import products, tiled_products
from decoding.kernels.cpu.attention.call_table import (
    COUNTER,
    COUNTING,
    FIRST_SINK,
    FORMAT,
    GROUP,
    HAS_SINKS,
    KEY_DIM,
    LAYER,
    LAYER_NUMBERS,
    MOST_NODES,
    NUM_FIELDS,
    NUM_KV_HEADS,
    NUM_NODES,
    NUM_SEGMENTS,
    NUM_SINKS,
    NUM_SLOTS,
    NUM_TABLE_BLOCKS,
    NUM_TILES,
    PARENTS,
    POSITIONS,
    ROOM_WORDS,
    ROOMS_TAKEN,
    SCALING,
    SCRATCH,
    SEGMENTS,
    SOFTCAP,
    STORED,
    TABLES,
    TILES,
    VALUE_DIM,
    WRITE_SLOTS,
    LayerTable,
)
from decoding.kernels.cpu.attention.formats import FLOAT32
from decoding.kernels.cpu.attention.products import NUM_BLOCKS, SOME, SOME_BLOCKS, WIDE, Blocks, Rows
from decoding.kernels.cpu.attention.staging import (
    blocks_of,
    must_stage_values,
    stage_keys,
    stage_path,
    stage_values,
)
from decoding.kernels.cpu.attention.step_table import NUM_WRITTEN, TILE_PAIRS, StepTable, Table
from decoding.kernels.cpu.attention.storing import load_queries, save, store_head
from decoding.kernels.cpu.attention.tile import Tile, make_tile, node_of, slot_range
from decoding.kernels.cpu.attention.tile_scratch import ADDED_AT_ONCE, RANGE, address_of, fill, round_up, sum_widths
from decoding.kernels.cpu.attention.tiled_products import Tiles
from decoding.kernels.cpu.attention.weighing import find_path, follow_paths, start_sums, weigh
from decoding.kernels.cpu.lanes import LANES, VECTOR_BYTES
from decoding.kernels.cpu.products.tiles import HAS_TILES, NUM_TOTALS, TILE_ROWS, TILE_STEPS, release_tiles, shape_tiles
from decoding.kernels.layout import BLOCK_LEN
from decoding.kernels.numba_kernel import kernel

FEW = 16  # pairs


@kernel(borrows=True)
def _shape(tile: Tile, num_pairs: int) -> None:
    """Have the processor's tiles fit so many pairs, or as many as they take; those that fit stay as they are."""
    tile.rooms.shape[0] = shape_tiles(tile.rooms.shape[0], min(num_pairs, TILE_ROWS), TILE_STEPS)


@kernel
def _score_in_tiles(tile: Tile, blocks: Blocks, scores: int) -> None:
    """As `_score_rows`, of staged blocks. Keys beyond the last one's are scored, too, which are never read."""
    query_step, score_step = 4 * round_up(tile.layer.integers[KEY_DIM], LANES), 4 * tile.score_width
    keys = Tiles(blocks.base, VECTOR_BYTES, blocks.block_step, TILE_STEPS * VECTOR_BYTES)
    for pair in range(0, tile.num_pairs, TILE_ROWS):
        _shape(tile, tile.num_pairs - pair)
        queries = Rows(address_of(tile.rooms.queries) + pair * query_step, query_step)
        target = Rows(scores + pair * score_step, score_step)
        tiled_products.score(queries, keys, blocks.block_step // keys.behind, target)
    for pair in range(tile.num_pairs):
        lanes.scale(scores + pair * score_step, NUM_BLOCKS, tile.layer.numbers[SCALING])


@kernel
def _score_rows(tile: Tile, blocks: Blocks, places: tuple[int, int], scores: int) -> None:
    """Score up to `NUM_BLOCKS` blocks. places: of the first, and of their end. scores: the address for the first
    pair's."""
    if HAS_TILES and tile.is_in_pairs:
        _score_in_tiles(tile, blocks, scores)
        return
    width, factor, is_in_pairs = tile.layer.integers[KEY_DIM], tile.layer.numbers[SCALING], tile.is_in_pairs
    num_steps = (width + 1) // 2 if is_in_pairs else width
    query_step, score_step, (first, end) = 4 * round_up(width, LANES), 4 * tile.score_width, places
    for pair in range(0, tile.num_pairs, SOME):
        queries = Rows(address_of(tile.rooms.queries) + pair * query_step, query_step)
        target = Rows(scores + pair * score_step, score_step)
        if tile.num_pairs == 1:
            products.score_one(queries, blocks, first, num_steps, is_in_pairs, factor, target)
        elif end - first <= SOME_BLOCKS // 2:
            products.score_last(queries, blocks, first, num_steps, is_in_pairs, factor, target)
        else:
            for place in range(first, end, SOME_BLOCKS):
                part = Rows(target.start + 4 * BLOCK_LEN * (place - first), score_step)
                products.score_some(queries, blocks, place, num_steps, is_in_pairs, factor, part)


@nb.njit(inline="always")
def _score(tile: Tile, slots: tuple[int, int]) -> None:
    """Score the keys of a range of slots. A few scores beyond them are written but never read."""
    first, count = slots[0] // BLOCK_LEN, (slots[1] - slots[0] + BLOCK_LEN - 1) // BLOCK_LEN
    source = blocks_of(tile.keys, (first, count), 0, (tile.values, first))
    for done in range(0, count, NUM_BLOCKS):
        end, scores = min(done + NUM_BLOCKS, count), address_of(tile.rooms.scores) + 4 * BLOCK_LEN * done
        if tile.layer.integers[FORMAT] == FLOAT32:
            _score_rows(tile, source, (done, end), scores)
        else:
            _score_rows(tile, stage_keys(tile, source, done), (0, end - done), scores)
    if tile.layer.numbers[SOFTCAP] > 0:
        for pair in range(tile.num_pairs):
            row = address_of(tile.rooms.scores) + 4 * pair * tile.score_width
            lanes.soft_cap(row, count, tile.layer.numbers[SOFTCAP])


@nb.njit(inline="always")
def _columns(blocks: Blocks, first: int) -> Blocks:
    """The same blocks, from a column's bytes on."""
    return Blocks(
        blocks.table,
        blocks.base + 4 * first,
        blocks.block_step,
        blocks.last,
        blocks.row_step,
        blocks.next_table,
        blocks.next_base + 4 * first,
        blocks.next_block_step,
    )


@kernel
def _add_in_tiles(tile: Tile, pairs: tuple[int, int], blocks: Blocks, num_keys: int, weights: int) -> None:
    """As `_add_rows`, of staged values."""
    padded, sum_width = sum_widths(tile.layer.integers[VALUE_DIM])
    score_step, count = 4 * tile.score_width, (num_keys + ADDED_AT_ONCE - 1) // ADDED_AT_ONCE
    for pair in range(pairs[0], pairs[1], TILE_ROWS):
        _shape(tile, pairs[1] - pair)
        rows = Rows(weights + pair * score_step, score_step)
        for column in range(0, padded, NUM_TOTALS * LANES):
            sums = Rows(address_of(tile.rooms.sums) + 4 * (pair * sum_width + column), 4 * sum_width)
            values = Tiles(blocks.base + 4 * column, blocks.row_step, VECTOR_BYTES, TILE_STEPS * blocks.row_step)
            if column + NUM_TOTALS * LANES <= padded:
                tiled_products.add_wide(rows, values, count, sums)
            else:
                tiled_products.add_narrow(rows, values, count, sums)


@kernel
def _add_rows(tile: Tile, pairs: tuple[int, int], blocks: Blocks, keys: tuple[int, int], weights: int) -> None:
    """Add the weighted values of keys. pairs: a range of the tile's. keys: the place of the first block, and how many.
    weights: the address of those of the tile's first pair."""
    if HAS_TILES and tile.is_in_pairs:
        _add_in_tiles(tile, pairs, blocks, keys[1], weights)
        return
    padded, sum_width = sum_widths(tile.layer.integers[VALUE_DIM])
    score_step, (first, num_keys), is_in_pairs = 4 * tile.score_width, keys, tile.is_in_pairs
    num_steps = (num_keys + 1) // 2 if is_in_pairs else num_keys
    pair, end = pairs
    while pair < end:
        rows = Rows(weights + pair * score_step, score_step)
        is_some = end - pair >= SOME or (end == tile.num_pairs and end - pair > 1)
        for column in range(0, padded, WIDE * LANES):
            sums = Rows(address_of(tile.rooms.sums) + 4 * (pair * sum_width + column), 4 * sum_width)
            part, is_wide = _columns(blocks, column), column + WIDE * LANES <= padded
            if is_some and is_wide:
                products.add_some_wide(rows, part, first, num_steps, is_in_pairs, sums)
            elif is_some:
                products.add_some_narrow(rows, part, first, num_steps, is_in_pairs, sums)
            elif is_wide:
                products.add_one_wide(rows, part, first, num_steps, is_in_pairs, sums)
            else:
                products.add_one_narrow(rows, part, first, num_steps, is_in_pairs, sums)
        pair += SOME if is_some else 1


@nb.njit(inline="always")
def _weights_at(tile: Tile, place: int, done: int) -> Any:
    """The address of the first pair's weights. place: where the range begins in a line. done: keys of the range before
    these."""
    return address_of(tile.rooms.scores) + 4 * place + (2 if tile.is_in_pairs else 4) * done


@nb.njit(inline="always")
def _add_values(tile: Tile, place: int, slots: tuple[int, int], is_last: bool) -> None:
    """Add the weighted values of slots that lie by position, a range's first ones. place: where the range begins in a
    line. is_last: whether the thread then goes on with its next keys."""
    start, end = slots
    first, count = start // BLOCK_LEN, (end - start + BLOCK_LEN - 1) // BLOCK_LEN
    then = (tile.next_keys, 0) if is_last else (tile.keys, first + count)
    source = blocks_of(tile.values, (first, count), 4 * tile.layer.integers[VALUE_DIM], then)
    is_staged = must_stage_values(tile)
    at_once = NUM_BLOCKS if is_staged or tile.num_pairs > FEW else count  # many pairs find a few blocks in the L1 cache
    for done in range(0, count, at_once):
        num_keys = min(end - start - done * BLOCK_LEN, at_once * BLOCK_LEN)
        blocks, block = source, done
        if is_staged:
            blocks, block = stage_values(tile, source, done, num_keys), 0
        weights = _weights_at(tile, place, done * BLOCK_LEN)
        _add_rows(tile, (0, tile.num_pairs), blocks, (block, num_keys), weights)


@kernel
def _add_paths(tile: Tile, place: int, positions: tuple[int, int], begin: int) -> None:
    """Add the weighted values of a range's last positions, in which each row has slots of its own. place, begin: where
    the range begins in a line, and at which position."""
    group, (start, end), pair = tile.layer.integers[GROUP], positions, 0
    while pair < tile.num_pairs:
        last = min(tile.num_pairs, pair + group - (tile.first_pair + pair) % group)
        num_keys = min(find_path(tile, node_of(tile, pair), start), end - start)
        for done in range(0, num_keys, NUM_BLOCKS * BLOCK_LEN):
            count = min(num_keys - done, NUM_BLOCKS * BLOCK_LEN)
            blocks = stage_path(tile, done, count)
            _add_rows(tile, (pair, last), blocks, (0, count), _weights_at(tile, place, start - begin + done))
        pair = last


@kernel(borrows=True)
def _attend_tile(tile: Tile) -> None:
    """Fill the tile's sums."""
    first, end = slot_range(tile)
    # From here on slots no longer lie by position.
    shared_end = end if tile.is_chain else tile.prefix_len // ADDED_AT_ONCE * ADDED_AT_ONCE
    start_sums(tile)
    while first < end:
        border = (first // RANGE + 1) * RANGE
        has_paths = not tile.is_chain and border > tile.prefix_len
        stop = end if has_paths else min(border, end)
        _score(tile, (first, stop))
        last = follow_paths(tile, first) if has_paths else stop
        begin = first
        while begin < last:
            range_end = min((begin // RANGE + 1) * RANGE, last)
            weigh(tile, first, (begin, range_end))
            shared = min(range_end, shared_end)
            if begin < shared:
                _add_values(tile, begin - first, (begin, shared), stop == end)
            if has_paths:
                _add_paths(tile, begin - first, (max(begin, shared_end), range_end), begin)
            begin = range_end
        first = stop


@nb.njit(inline="always")
def _attend(call: Table) -> None:
    """One thread's share: heads to store, then tiles of heads, from the last tile to the first.

    Threads draw tickets from a shared counter, so that a thread which loses its core delays little. A thread draws its
    next ticket one tile early and prefetches those keys. All keys and values are stored before any tile attends.
    """
    layer, step = _layer_of(call), _step_of(call)
    num_heads, num_tiles = layer.integers[NUM_KV_HEADS], len(step.tiles)
    taken, stored = address_of(call) + 8 * COUNTER, address_of(call) + 8 * STORED
    room = call[ROOM_WORDS] * lanes.raise_counter(address_of(call) + 8 * ROOMS_TAKEN, 1)
    scratch = nb.carray(lanes.pointer(call[SCRATCH] + 4 * room, np.float32(0)), call[ROOM_WORDS])
    fill(scratch, 0, LANES, np.float32(0))  # tiles are shaped for nothing yet
    ticket = lanes.raise_counter(taken, 1)
    while ticket < num_heads:
        store_head(call, layer.integers, step.write_slots_M, ticket)
        lanes.raise_counter(stored, 1)
        ticket = lanes.raise_counter(taken, 1)
    while lanes.raise_counter(stored, 0) < num_heads:
        pass
    while ticket < num_heads + num_tiles * num_heads:
        head, number = divmod(ticket - num_heads, num_tiles)
        ticket = lanes.raise_counter(taken, 1)
        next_head = min((ticket - num_heads) // num_tiles, num_heads - 1)
        tile = make_tile(layer, step, (num_tiles - 1 - number, head, next_head), call[MOST_NODES], scratch)
        load_queries(call, tile)
        _attend_tile(tile)
        save(call, tile)
    release_tiles()


@kernel
def _layer_of(call: Table) -> LayerTable:
    return LayerTable(
        nb.carray(lanes.pointer(call[LAYER], np.int64(0)), HAS_SINKS + 1),
        nb.carray(lanes.pointer(call[LAYER_NUMBERS], np.float32(0)), FIRST_SINK + call[NUM_SINKS]),
        nb.carray(lanes.pointer(call[COUNTING], np.int32(0)), NUM_BLOCKS),
    )


@kernel
def _step_of(call: Table) -> StepTable:
    return StepTable(
        nb.carray(lanes.pointer(call[SEGMENTS], np.int64(0)), (call[NUM_SEGMENTS], NUM_WRITTEN + 1)),
        nb.carray(lanes.pointer(call[TILES], np.int64(0)), (call[NUM_TILES], TILE_PAIRS + 1)),
        nb.carray(lanes.pointer(call[TABLES], np.int32(0)), call[NUM_TABLE_BLOCKS]),
        nb.carray(lanes.pointer(call[WRITE_SLOTS], np.int64(0)), call[NUM_SLOTS]),
        nb.carray(lanes.pointer(call[PARENTS], np.int32(0)), call[NUM_NODES]),
        nb.carray(lanes.pointer(call[POSITIONS], np.int64(0)), call[NUM_NODES]),
    )


def attend(fields: Any) -> None:
    """One thread's share of a layer's call. fields: address of the call's fields."""
    _attend(nb.carray(fields, NUM_FIELDS))
