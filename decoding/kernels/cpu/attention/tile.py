"""One tile of exact attention: its queries are loaded, keys scored, masked and weighed, values added, results saved.

A row is a token. A tile's scores lie in scratch, one line for each (row, head) pair. Invariant: a pair adds its keys
one by one in logical order, whatever other pairs the tile has.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from decoding.kernels.cpu import lanes
from decoding.kernels.cpu.attention import products
from decoding.kernels.cpu.attention.blocks import columns, head_blocks, plane_of, stage
from decoding.kernels.cpu.attention.call_table import (
    CHUNK,
    FIRST_SINK,
    GROUP,
    HAS_SINKS,
    ITEM_SIZE,
    KEY_DIM,
    KEYS,
    NUM_KV_HEADS,
    OUT,
    QUERY,
    QUERY_HEAD,
    QUERY_ROW,
    SCALING,
    SOFTCAP,
    VALUE_DIM,
    VALUES,
    WINDOW,
    LayerTable,
    address_of,
)
from decoding.kernels.cpu.attention.products import NUM_BLOCKS, SOME, SOME_BLOCKS, WIDE, Rows, Sums
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


@nb.njit(cache=True)
def _load_queries(call: Table, layer: Table, tile: Table, first_row: int, head: int, queries: Floats) -> None:
    """Load queries [TILE_ROWS, D padded], with zeros for the pairs by which a kernel's group exceeds the tile."""
    group, width, step = layer[GROUP], layer[KEY_DIM], round_up(layer[KEY_DIM], LANES)
    for place in range(round_up(tile[TILE_PAIRS], SOME)):
        pair, target = tile[TILE_FIRST] + place, address_of(queries) + 4 * place * step
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
def _first_visible(layer: Table, position: int) -> int:
    first = max(0, position - layer[WINDOW] + 1) if layer[WINDOW] > 0 else 0
    return max(first, position // layer[CHUNK] * layer[CHUNK]) if layer[CHUNK] > 0 else first


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
def _score(layer: LayerTable, table: IntArray, tile: Table, head: int, rooms: Rooms, score_step: int) -> None:
    """Score every key in the blocks of `table`. A few scores beyond them are written but never read."""
    width = layer.integers[KEY_DIM]
    values = plane_of(layer.integers, VALUES, head)
    source = head_blocks(table, width, plane_of(layer.integers, KEYS, head), values)
    queries, scores, scaling = address_of(rooms.queries), address_of(rooms.scores), layer.numbers[SCALING]
    query_step = 4 * round_up(width, LANES)
    for done in range(0, len(table), NUM_BLOCKS):
        blocks, first = source, done
        if layer.integers[ITEM_SIZE] == 2:
            blocks, first = stage(table, done, layer, source, width, rooms.staged), 0
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
        largest = lanes.find_largest(address_of(scores) + pair * step, num_vectors, sink)
        sums[pair * width] = largest
        sums[pair * width + padded] = lanes.exp(sink - largest) if table.integers[HAS_SINKS] else np.float32(0)
    for pair in range(tile[TILE_PAIRS]):
        lanes.weigh(address_of(scores) + pair * step, num_vectors, sums[pair * width])
        total = sums[pair * width + padded]
        fill(sums, pair * width, pair * width + padded, np.float32(0))
        fill(sums, pair * width + padded, (pair + 1) * width, total)


@nb.njit(cache=True)
def _add_values(
    layer: LayerTable, table: IntArray, tile: Table, heads: tuple[int, int], rooms: Rooms, keys: tuple[int, int]
) -> None:
    """Add to sums [TILE_ROWS, V padded] the weighted values, key by key. heads: this one and the thread's next.
    keys: the number of keys, and the bytes from one pair's scores to the next's."""
    width = layer.integers[VALUE_DIM]
    padded, sum_width = sum_widths(width)
    count, score_step = keys
    next_keys = plane_of(layer.integers, KEYS, heads[1])
    source = head_blocks(table, width, plane_of(layer.integers, VALUES, heads[0]), next_keys)
    is_one, is_staged = tile[TILE_PAIRS] == 1, layer.integers[ITEM_SIZE] == 2 or width != padded
    for done in range(0, len(table), NUM_BLOCKS):
        num_keys = min(count - done * BLOCK_LEN, NUM_BLOCKS * BLOCK_LEN)
        blocks, first = source, done
        if is_staged:
            blocks, first = stage(table, done, layer, source, width, rooms.staged), 0
        for pair in range(0, tile[TILE_PAIRS], SOME):
            weights = Rows(address_of(rooms.scores) + pair * score_step + 4 * BLOCK_LEN * done, score_step)
            for column in range(0, padded, WIDE * LANES):
                start = address_of(rooms.sums) + 4 * pair * sum_width
                total = start + 4 * (padded + column // (WIDE * LANES))
                target = Sums(start + 4 * column, 4 * sum_width, total)
                part = columns(blocks, column)
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
def _save(call: Table, layer: Table, tile: Table, first_row: int, head: int, sums: Floats) -> None:
    """Divide the weighted sums by the weights' totals and write them to the result."""
    group, width, item = layer[GROUP], layer[VALUE_DIM], layer[ITEM_SIZE]
    padded, step = sum_widths(width)
    for place in range(tile[TILE_PAIRS]):
        pair, row = tile[TILE_FIRST] + place, address_of(sums) + 4 * place * step
        number = (first_row + pair // group) * layer[NUM_KV_HEADS] * group + head * group + pair % group
        lanes.scale(row, padded // LANES, np.float32(1) / sums[place * step + padded])
        if item == 2:
            lanes.narrow(row, padded // LANES, row)
        lanes.copy_bytes(call[OUT] + number * width * item, row, width * item)


@nb.njit(cache=True)
def attend_tile(call: Table, table: LayerTable, step: StepTable, task: tuple[int, int, int], scratch: Floats) -> None:
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
            row = address_of(rooms.scores) + pair * score_step
            lanes.soft_cap(row, len(blocks_T), table.numbers[SOFTCAP])
    _mask(layer, step, tile, (start, end), rooms.scores)
    _weigh(table, tile, head, (start, end), rooms.scores, rooms.sums)
    _add_values(table, blocks_T, tile, (head, next_head), rooms, (count, score_step))
    _save(call, layer, tile, segment[FIRST_ROW], head, rooms.sums)
