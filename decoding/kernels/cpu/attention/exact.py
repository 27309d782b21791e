"""The compiled half of exact attention: one call per layer stores a step's keys and values, then attends.

Integer tables hold addresses and sizes; the constants below and in `step_table` name their columns. Addresses and
steps are in bytes. A row is a token. A tile's scores lie in scratch, one line for each (row, head) pair.
Invariant: a pair adds its keys one by one in logical order, so tiles, blocks and threads cannot change its result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention import products
from decoding.kernels.cpu.attention.products import NUM_BLOCKS, SOME, SOME_BLOCKS, WIDE, Blocks, Rows, Sums
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
    Floats,
    Rooms,
    fill,
    make_rooms,
    round_up,
    score_width,
    sum_widths,
)
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.layout import BLOCK_LEN

NEVER = np.float32(-np.inf)


class LayerTable(NamedTuple):
    """One layer of one store. numbers: scaling, soft-cap, then one sink per query head if the layer has sinks.

    counting: int32, 0, 1, .. `NUM_BLOCKS` - 1, the block table of staged blocks.
    """

    integers: Table
    numbers: Floats
    counting: IntArray


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


@nb.njit(cache=True)
def _address(array: Any) -> Any:
    return np.int64(array.ctypes.data)  # signed: numba adds signed and unsigned as floats


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


@nb.njit(cache=True)
def _first_visible(layer: Table, position: int) -> int:
    first = max(0, position - layer[WINDOW] + 1) if layer[WINDOW] > 0 else 0
    return max(first, position // layer[CHUNK] * layer[CHUNK]) if layer[CHUNK] > 0 else first


@nb.njit(cache=True)
def _load_queries(call: Table, layer: Table, tile: Table, first_row: int, head: int, queries: Floats) -> None:
    """Load queries [TILE_ROWS, D padded], with zeros for the pairs by which a kernel's group exceeds the tile."""
    group, width, step = layer[GROUP], layer[KEY_DIM], round_up(layer[KEY_DIM], LANES)
    for place in range(round_up(tile[TILE_PAIRS], SOME)):
        pair, target = tile[TILE_FIRST] + place, _address(queries) + 4 * place * step
        source = call[QUERY] + (head * group + pair % group) * call[QUERY_HEAD]
        source += (first_row + pair // group) * call[QUERY_ROW]
        if place >= tile[TILE_PAIRS]:
            fill(queries, place * step, (place + 1) * step, np.float32(0))
        elif layer[ITEM_SIZE] == 4:
            lanes.copy_bytes(target, source, 4 * width)
        else:  # widen from a copy in the line's second half, since whole vectors are read
            lanes.copy_bytes(target + 2 * step, source, 2 * width)
            lanes.widen(target + 2 * step, target, step // LANES, target)


@nb.njit(cache=True)
def _save(call: Table, layer: Table, tile: Table, first_row: int, head: int, sums: Floats) -> None:
    """Divide the weighted sums by the weights' totals and write them to the result."""
    group, width, item = layer[GROUP], layer[VALUE_DIM], layer[ITEM_SIZE]
    padded, step = sum_widths(width)
    for place in range(tile[TILE_PAIRS]):
        pair, row = tile[TILE_FIRST] + place, _address(sums) + 4 * place * step
        number = (first_row + pair // group) * layer[NUM_KV_HEADS] * group + head * group + pair % group
        lanes.scale(row, padded // LANES, np.float32(1) / sums[place * step + padded])
        if item == 2:
            lanes.narrow(row, padded // LANES, row)
        lanes.copy_bytes(call[OUT] + number * width * item, row, width * item)


@nb.njit(cache=True)
def _key_range(layer: Table, step: StepTable, tile: Table) -> tuple[int, int]:
    """The range of the request's keys that holds all that the tile's rows may see, from the start of a block."""
    segment = step.segments[tile[TILE_SEGMENT]]
    first = segment[NUM_WRITTEN] + tile[TILE_FIRST] // layer[GROUP]
    last = segment[NUM_WRITTEN] + (tile[TILE_FIRST] + tile[TILE_PAIRS] - 1) // layer[GROUP]
    end = segment[PREFIX_LEN] + last + 1
    start = end
    for node in range(first, last + 1):
        start = min(start, _first_visible(layer, step.positions_P[segment[FIRST_NODE] + node]))
    if not segment[IS_CHAIN]:  # only the prefix is stored by position
        start = min(start, segment[PREFIX_LEN])
    return start // BLOCK_LEN * BLOCK_LEN, end


@nb.njit(cache=True)
def _mask(layer: Table, step: StepTable, tile: Table, keys: tuple[int, int], scores: Floats) -> None:
    """Set to minus infinity the scores of keys that a pair's row may not see, and of slots after the last key."""
    segment, (start, end) = step.segments[tile[TILE_SEGMENT]], keys
    prefix_len, first_node = segment[PREFIX_LEN], segment[FIRST_NODE]
    width, count = score_width(end - start), round_up(end - start, LANES)
    for pair in range(tile[TILE_PAIRS]):
        zero = pair * width - start  # the place of the request's key 0 in this pair's scores
        node = segment[NUM_WRITTEN] + (tile[TILE_FIRST] + pair) // layer[GROUP]
        low = _first_visible(layer, step.positions_P[first_node + node])
        fill(scores, zero + prefix_len + node + 1, zero + start + count, NEVER)
        if segment[IS_CHAIN]:
            fill(scores, zero + start, zero + low, NEVER)
            continue
        fill(scores, zero + start, zero + min(low, prefix_len), NEVER)
        for other in range(node, -1, -1):  # climb to the root and hide all nodes between a node and its parent
            is_seen = other == node and step.positions_P[first_node + other] >= low
            if other == node:
                node = step.parents_P[first_node + other]
            if not is_seen:
                scores[zero + prefix_len + other] = NEVER


@nb.njit(cache=True)
def _weigh(table: LayerTable, tile: Table, head: int, keys: tuple[int, int], scores: Floats, sums: Floats) -> None:
    """Turn scores into weights exp(score - largest); start sums at 0, and totals at the sink's weight."""
    group, (start, end) = table.integers[GROUP], keys
    padded, width = sum_widths(table.integers[VALUE_DIM])
    num_vectors, step = round_up(end - start, LANES) // LANES, 4 * score_width(end - start)
    for pair in range(tile[TILE_PAIRS]):
        sink = NEVER
        if table.integers[HAS_SINKS]:
            sink = table.numbers[FIRST_SINK + head * group + (tile[TILE_FIRST] + pair) % group]
        largest = lanes.find_largest(_address(scores) + pair * step, num_vectors, sink)
        sums[pair * width] = largest
        sums[pair * width + padded] = lanes.exp(sink - largest) if table.integers[HAS_SINKS] else np.float32(0)
    for pair in range(tile[TILE_PAIRS]):
        lanes.weigh(_address(scores) + pair * step, num_vectors, sums[pair * width])
        total = sums[pair * width + padded]
        fill(sums, pair * width, pair * width + padded, np.float32(0))
        fill(sums, pair * width + padded, (pair + 1) * width, total)


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
def _stage(table: IntArray, first: int, layer: LayerTable, source: Blocks, width: int, room: Floats) -> Blocks:
    """Copy up to `NUM_BLOCKS` blocks as float32 to `room`, where kernels may read a little beyond a row's end."""
    size = BLOCK_LEN * width
    count = min(len(table) - first, NUM_BLOCKS)
    for place in range(count):
        address = _block_address(table, source, first + place)
        target = _address(room) + 4 * size * place
        if layer.integers[ITEM_SIZE] == 2:
            lanes.widen(address, _ahead_address(table, source, first + place + NUM_BLOCKS), width, target)
        else:
            lanes.copy_bytes(target, address, 4 * size)
    start, step = _address(room), 4 * size
    return Blocks(_address(layer.counting), count - 1, start, step, source.row_step, start, step)


@nb.njit(cache=True)
def _plane(layer: Table, plane: int, head: int) -> tuple[int, int]:
    """The address of a head's part of block 0 in a plane [B, H, 16 x width], and the bytes from block to block."""
    width = layer[KEY_DIM] if plane == KEYS else layer[VALUE_DIM]
    size = BLOCK_LEN * width * layer[ITEM_SIZE]
    return layer[plane] + head * size, layer[NUM_KV_HEADS] * size


@nb.njit(cache=True)
def _head_blocks(table: IntArray, width: int, part: tuple[int, int], then: tuple[int, int]) -> Blocks:
    """One head's part of a plane. part, then: of this plane and of the one read after it, as from `_plane`. width: of
    the plane; the step between rows is that of float32, as bfloat16 is staged first."""
    return Blocks(_address(table), len(table) - 1, part[0], part[1], 4 * width, then[0], then[1])


@nb.njit(cache=True)
def _columns(blocks: Blocks, first: int) -> Blocks:
    """The same blocks of float32, from column `first` on."""
    base, then = blocks.base + 4 * first, blocks.then + 4 * first
    return Blocks(blocks.table, blocks.last, base, blocks.block_step, blocks.row_step, then, blocks.then_step)


@nb.njit(cache=True)
def _score(layer: LayerTable, table: IntArray, tile: Table, head: int, rooms: Rooms, score_step: int) -> None:
    """Score every key in the blocks of `table`. A few scores beyond them are written but never read."""
    width = layer.integers[KEY_DIM]
    values = _plane(layer.integers, VALUES, head)
    source = _head_blocks(table, width, _plane(layer.integers, KEYS, head), values)
    queries, scores, scaling = _address(rooms.queries), _address(rooms.scores), layer.numbers[SCALING]
    query_step = 4 * round_up(width, LANES)
    for done in range(0, len(table), NUM_BLOCKS):
        blocks, first = source, done
        if layer.integers[ITEM_SIZE] == 2:
            blocks, first = _stage(table, done, layer, source, width, rooms.staged), 0
        for pair in range(0, tile[TILE_PAIRS], SOME):
            rows = Rows(queries + pair * query_step, query_step)
            target = Rows(scores + pair * score_step + 4 * BLOCK_LEN * done, score_step)
            left = min(len(table) - done, NUM_BLOCKS)
            if tile[TILE_PAIRS] == 1:
                products.score_one(rows, blocks, first, width, scaling, target)
            elif left <= SOME_BLOCKS // 2:
                products.score_last(rows, blocks, first, width, scaling, target)
            else:
                for part in range(0, left, SOME_BLOCKS):
                    target = Rows(scores + pair * score_step + 4 * BLOCK_LEN * (done + part), score_step)
                    products.score_some(rows, blocks, first + part, width, scaling, target)


@nb.njit(cache=True)
def _add_values(
    layer: LayerTable, table: IntArray, tile: Table, heads: tuple[int, int], rooms: Rooms, keys: tuple[int, int]
) -> None:
    """Add to sums [TILE_ROWS, V padded] the weighted values, key by key. heads: this one and the thread's next.
    keys: the number of keys, and the bytes from one pair's scores to the next's."""
    width = layer.integers[VALUE_DIM]
    padded, sum_width = sum_widths(width)
    count, score_step = keys
    next_keys = _plane(layer.integers, KEYS, heads[1])
    source = _head_blocks(table, width, _plane(layer.integers, VALUES, heads[0]), next_keys)
    is_one, is_staged = tile[TILE_PAIRS] == 1, layer.integers[ITEM_SIZE] == 2 or width != padded
    for done in range(0, len(table), NUM_BLOCKS):
        num_keys = min(count - done * BLOCK_LEN, NUM_BLOCKS * BLOCK_LEN)
        blocks, first = source, done
        if is_staged:
            blocks, first = _stage(table, done, layer, source, width, rooms.staged), 0
        for pair in range(0, tile[TILE_PAIRS], SOME):
            weights = Rows(_address(rooms.scores) + pair * score_step + 4 * BLOCK_LEN * done, score_step)
            for column in range(0, padded, WIDE * LANES):
                start = _address(rooms.sums) + 4 * pair * sum_width
                total = start + 4 * (padded + column // (WIDE * LANES))
                target = Sums(start + 4 * column, 4 * sum_width, total)
                part = _columns(blocks, column)
                is_wide = column + WIDE * LANES <= padded
                if is_one and is_wide:
                    products.add_one_wide(weights, part, first, num_keys, target)
                elif is_one:
                    products.add_one_narrow(weights, part, first, num_keys, target)
                elif is_wide:
                    products.add_some_wide(weights, part, first, num_keys, target)
                else:
                    products.add_some_narrow(weights, part, first, num_keys, target)


@nb.njit(cache=True)
def _attend_tile(call: Table, table: LayerTable, step: StepTable, task: tuple[int, int, int], scratch: Floats) -> None:
    """Attend with one tile. task: the tile's number, a kv head, and the head that the thread takes next."""
    layer, (number, head, next_head) = table.integers, task
    tile = step.tiles[number]
    segment = step.segments[tile[TILE_SEGMENT]]
    start, end = _key_range(layer, step, tile)
    count, score_step = end - start, 4 * score_width(end - start)
    rooms = make_rooms(layer[KEY_DIM], layer[VALUE_DIM], scratch)
    first_block = segment[FIRST_BLOCK] + start // BLOCK_LEN
    blocks_T = step.blocks_T[first_block : first_block + (count + BLOCK_LEN - 1) // BLOCK_LEN]
    _load_queries(call, layer, tile, segment[FIRST_ROW], head, rooms.queries)
    _score(table, blocks_T, tile, head, rooms, score_step)
    if table.numbers[SOFTCAP] > 0:
        for pair in range(tile[TILE_PAIRS]):
            row = _address(rooms.scores) + pair * score_step
            lanes.soft_cap(row, len(blocks_T), table.numbers[SOFTCAP])
    _mask(layer, step, tile, (start, end), rooms.scores)
    _weigh(table, tile, head, (start, end), rooms.scores, rooms.sums)
    _add_values(table, blocks_T, tile, (head, next_head), rooms, (count, score_step))
    _save(call, layer, tile, segment[FIRST_ROW], head, rooms.sums)


@nb.njit(inline="always")
def _attend(call: Table) -> None:
    """One thread's share: heads to store, then tiles of heads, from the last tile to the first.

    Threads draw tickets from a shared counter, so that a thread which loses its core delays little. A thread draws its
    next ticket one tile early and prefetches those keys. All keys and values are stored before any tile attends.
    """
    table, step = _layer_of(call), _step_of(call)
    num_heads, num_tiles = table.integers[NUM_KV_HEADS], len(step.tiles)
    taken, stored = _address(call) + 8 * COUNTER, _address(call) + 8 * STORED
    room = call[ROOM_WORDS] * lanes.raise_counter(_address(call) + 8 * ROOMS_TAKEN, 1)
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
        _attend_tile(call, table, step, (num_tiles - 1 - tile, head, next_head), scratch)


@nb.njit(cache=True)
def _layer_of(call: Table) -> LayerTable:
    return LayerTable(
        nb.carray(lanes.pointer(call[LAYER], np.int64(0)), HAS_SINKS + 1),
        nb.carray(lanes.pointer(call[LAYER_NUMBERS], np.float32(0)), FIRST_SINK + call[NUM_SINKS]),
        nb.carray(lanes.pointer(call[COUNTING], np.int32(0)), NUM_BLOCKS),
    )


@nb.njit(cache=True)
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
