"""The compiled half of exact attention: store a step's keys and values, then attend, in one call per layer.

A tile is up to sixteen (row, head) pairs of one request that share a kv head. Integer tables say where
everything lies; the constants below name their columns. Addresses and steps are in bytes.
Invariant: a lane adds its keys one by one in logical order, so neither tiles, blocks nor threads can change it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.attention import lanes
from decoding.attention.lanes import IN_FLIGHT, LANES, VECTOR_BYTES
from decoding.core.tree import IntArray

BLOCK = 64  # keys converted to float32 at a time
NEVER = np.float32(-np.inf)
Table = NDArray[np.int64]
Floats = NDArray[np.float32]


class LayerTable(NamedTuple):
    """One layer of one store. numbers: scaling, soft-cap, then one sink per query head if it has any."""

    integers: Table
    numbers: Floats


class StepTable(NamedTuple):
    """segments: int64 [B, 7]; tiles: int64 [T, 3], for the layer's group; parents and positions of the trees."""

    segments: Table
    tiles: Table
    parents_P: IntArray
    positions_P: Table


# A segment: slot of its first key, committed tokens, its rows in the step, where its tree begins, and how many
# rows of the tree come before the step's.
START, PREFIX_LEN, FIRST_ROW, NUM_ROWS, IS_CHAIN, FIRST_NODE, NUM_WRITTEN = range(7)
# A layer: addresses of its planes [K, S, D], sizes, masks. ITEM_SIZE is 4 for float32, 2 for bfloat16.
KEYS, VALUES, NUM_SLOTS, NUM_KV_HEADS, GROUP, KEY_DIM, VALUE_DIM, ITEM_SIZE, WINDOW, CHUNK, HAS_SINKS = range(11)
SCALING, SOFTCAP, FIRST_SINK = range(3)
# A call: addresses, and steps from head to head and from row to row. OUT is [N, H, V], contiguous.
QUERY, QUERY_HEAD, QUERY_ROW, KEY, KEY_HEAD, KEY_ROW, VALUE, VALUE_HEAD, VALUE_ROW, OUT = range(10)
# A tile: its segment, its first (row, head) pair, how many.
TILE_SEGMENT, TILE_FIRST, TILE_LANES = range(3)


class SegmentTables(NamedTuple):
    """Per segment, as in `StepBatch`; starts: int64 [B], the slot of each one's first key."""

    starts: Table
    prefix_lens: IntArray
    offsets: IntArray
    is_chain: NDArray[np.bool_]
    tree_offsets: IntArray
    num_written: IntArray


@nb.njit(cache=True)
def make_segments(tables: SegmentTables) -> Table:
    """int64 [B, 7], see the column names above."""
    segments = np.empty((len(tables.starts), 7), np.int64)
    for segment in range(len(tables.starts)):
        segments[segment, START] = tables.starts[segment]
        segments[segment, PREFIX_LEN] = tables.prefix_lens[segment]
        segments[segment, FIRST_ROW] = tables.offsets[segment]
        segments[segment, NUM_ROWS] = tables.offsets[segment + 1] - tables.offsets[segment]
        segments[segment, IS_CHAIN] = tables.is_chain[segment]
        segments[segment, FIRST_NODE] = tables.tree_offsets[segment]
        segments[segment, NUM_WRITTEN] = tables.num_written[segment]
    return segments


@nb.njit(cache=True)
def make_tiles(segments: Table, group: int) -> Table:
    """int64 [n, 3]: the (row, head) pairs of every segment, for one kv head, sixteen to a tile."""
    num_tiles = 0
    for segment in range(len(segments)):
        num_tiles += (segments[segment, NUM_ROWS] * group + LANES - 1) // LANES
    tiles = np.empty((num_tiles, 3), np.int64)
    tile = 0
    for segment in range(len(segments)):
        num_pairs = segments[segment, NUM_ROWS] * group
        for first in range(0, num_pairs, LANES):
            tiles[tile, TILE_SEGMENT] = segment
            tiles[tile, TILE_FIRST] = first
            tiles[tile, TILE_LANES] = min(LANES, num_pairs - first)
            tile += 1
    return tiles


@nb.njit(cache=True)
def scratch_words(num_keys: int, key_dim: int, value_dim: int) -> int:
    """float32 words that one tile needs: scores, query, result, three lane arrays and a converted block."""
    padded_keys = num_keys + 2 * IN_FLIGHT
    return LANES * (padded_keys + key_dim + value_dim + 4) + (BLOCK + IN_FLIGHT) * max(key_dim, value_dim)


@nb.njit(cache=True)
def _address(array: Floats) -> Any:
    return np.int64(array.ctypes.data)  # signed: numba adds signed and unsigned as floats


@nb.njit(cache=True)
def _store_rows(call: Table, layer: Table, segments: Table) -> None:
    item = layer[ITEM_SIZE]
    key_bytes, value_bytes = layer[KEY_DIM] * item, layer[VALUE_DIM] * item
    for segment in range(len(segments)):
        first_slot = segments[segment, START] + segments[segment, PREFIX_LEN] + segments[segment, NUM_WRITTEN]
        for head in range(layer[NUM_KV_HEADS]):
            for index in range(segments[segment, NUM_ROWS]):
                row, slot = segments[segment, FIRST_ROW] + index, head * layer[NUM_SLOTS] + first_slot + index
                key = call[KEY] + head * call[KEY_HEAD] + row * call[KEY_ROW]
                lanes.copy_bytes(layer[KEYS] + slot * key_bytes, key, key_bytes)
                value = call[VALUE] + head * call[VALUE_HEAD] + row * call[VALUE_ROW]
                lanes.copy_bytes(layer[VALUES] + slot * value_bytes, value, value_bytes)


@nb.njit(cache=True)
def _first_visible(layer: Table, position: int) -> int:
    first = max(0, position - layer[WINDOW] + 1) if layer[WINDOW] > 0 else 0
    return max(first, position // layer[CHUNK] * layer[CHUNK]) if layer[CHUNK] > 0 else first


@nb.njit(cache=True)
def _load_query(call: Table, layer: Table, tile: Table, first_row: int, head: int, query: Floats) -> None:
    """query [D, LANES]: the tile's queries side by side, zeros in unused lanes."""
    group, width = layer[GROUP], layer[KEY_DIM]
    for lane in range(LANES):
        pair = tile[TILE_FIRST] + lane
        address = call[QUERY] + (head * group + pair % group) * call[QUERY_HEAD]
        address += (first_row + pair // group) * call[QUERY_ROW]
        if lane >= tile[TILE_LANES]:
            for column in range(width):
                query[column * LANES + lane] = 0
        elif layer[ITEM_SIZE] == 4:
            for column in range(width):
                query[column * LANES + lane] = lanes.load_float(address + 4 * column)
        else:
            for column in range(width):
                bits = np.int64(lanes.load_half(address + 2 * column)) << 16
                query[column * LANES + lane] = lanes.float_of_bits(bits)


@nb.njit(cache=True)
def _save(call: Table, layer: Table, tile: Table, first_row: int, head: int, sums: tuple[Floats, Floats]) -> None:
    """Divide the weighted sums by the weights' totals and write them where the model wants them."""
    result, total = sums
    group, width = layer[GROUP], layer[VALUE_DIM]
    num_heads = layer[NUM_KV_HEADS] * group
    for lane in range(tile[TILE_LANES]):
        pair = tile[TILE_FIRST] + lane
        row = (first_row + pair // group) * num_heads + head * group + pair % group
        address = call[OUT] + row * width * layer[ITEM_SIZE]
        share = np.float32(1) / total[lane]
        if layer[ITEM_SIZE] == 4:
            for column in range(width):
                lanes.store_float(address + 4 * column, result[column * LANES + lane] * share)
        else:
            for column in range(width):
                bits = lanes.bits_of_float(result[column * LANES + lane] * share)
                rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, ties to even
                lanes.store_half(address + 2 * column, np.uint16(rounded))


@nb.njit(cache=True)
def _key_range(layer: Table, step: StepTable, tile: Table) -> tuple[int, int]:
    """The keys, counted from the request's first, that some lane of the tile may see."""
    segment = step.segments[tile[TILE_SEGMENT]]
    first = segment[NUM_WRITTEN] + tile[TILE_FIRST] // layer[GROUP]
    last = segment[NUM_WRITTEN] + (tile[TILE_FIRST] + tile[TILE_LANES] - 1) // layer[GROUP]
    end = segment[PREFIX_LEN] + last + 1
    start = end
    for node in range(first, last + 1):
        start = min(start, _first_visible(layer, step.positions_P[segment[FIRST_NODE] + node]))
    if not segment[IS_CHAIN]:  # only the prefix is stored by position
        start = min(start, segment[PREFIX_LEN])
    return start, end


@nb.njit(cache=True)
def _hide(scores: Floats, lane: int, start: int, end: int) -> None:
    for key in range(start, end):
        scores[key * LANES + lane] = NEVER


@nb.njit(cache=True)
def _mask(layer: Table, step: StepTable, tile: Table, start: int, end: int, scores: Floats) -> None:
    """Hide from each lane what its row may not see among the keys from `start` to `end`."""
    segment = step.segments[tile[TILE_SEGMENT]]
    prefix_len, first_node = segment[PREFIX_LEN], segment[FIRST_NODE]
    for lane in range(tile[TILE_LANES]):
        node = segment[NUM_WRITTEN] + (tile[TILE_FIRST] + lane) // layer[GROUP]
        low = _first_visible(layer, step.positions_P[first_node + node])
        if segment[IS_CHAIN]:
            _hide(scores, lane, 0, low - start)
            _hide(scores, lane, prefix_len + node + 1 - start, end - start)
            continue
        _hide(scores, lane, 0, min(low, prefix_len) - start)
        for other in range(end - prefix_len - 1, -1, -1):  # climb to the root, hiding all between a node and its parent
            is_seen = other == node and step.positions_P[first_node + other] >= low
            if other == node:
                node = step.parents_P[first_node + other]
            if not is_seen:
                scores[(prefix_len + other - start) * LANES + lane] = NEVER


@nb.njit(cache=True)
def _score(table: LayerTable, keys_at: int, count: int, query: Floats, scores: Floats, block: Floats) -> None:
    """Scores of `count` keys for all lanes; also of up to 15 rows beyond, which nobody reads."""
    width, item = table.integers[KEY_DIM], table.integers[ITEM_SIZE]
    size = 4 * width
    scaling, queries, scores_at = table.numbers[SCALING], _address(query), _address(scores)
    for done in range(0, count, BLOCK):
        num_keys = min(BLOCK, count - done)
        keys = keys_at + done * width * item
        if item == 2:
            lanes.widen(keys, (num_keys * width + LANES - 1) // LANES, _address(block))
            keys = _address(block)
        for key in range(0, num_keys, IN_FLIGHT):
            if item == 4:
                lanes.prefetch(keys + (key + 2 * IN_FLIGHT) * size, IN_FLIGHT * size)
            target = scores_at + (done + key) * VECTOR_BYTES
            lanes.score_keys(queries, keys + key * size, size, width, scaling, target)


@nb.njit(cache=True)
def _weigh(table: LayerTable, tile: Table, head: int, scores: Floats, count: int, sums: Floats) -> Floats:
    """Turn scores into weights relative to the largest; return their totals [LANES]. sums: three lane arrays."""
    maximum, total, sink = sums[:LANES], sums[LANES : 2 * LANES], sums[2 * LANES : 3 * LANES]
    total[:] = 0
    maximum[:] = NEVER
    has_sinks, group = table.integers[HAS_SINKS], table.integers[GROUP]
    if has_sinks:
        sink[:] = 0
        for lane in range(tile[TILE_LANES]):
            sink[lane] = table.numbers[FIRST_SINK + head * group + (tile[TILE_FIRST] + lane) % group]
        maximum[:] = sink
    lanes.raise_maximum(_address(scores), count, _address(maximum))
    if has_sinks:
        lanes.weigh(_address(sink), 1, _address(maximum), _address(total))
    lanes.weigh(_address(scores), count, _address(maximum), _address(total))
    return total


@nb.njit(cache=True)
def _add_values(layer: Table, values_at: int, count: int, weights: Floats, result: Floats, block: Floats) -> None:
    """result [V, LANES]: the values of `count` keys, weighted and added in order."""
    width, item = layer[VALUE_DIM], layer[ITEM_SIZE]
    size = 4 * width
    result[:] = 0
    for done in range(0, count, BLOCK):
        num_keys = min(BLOCK, count - done)
        values, weight = values_at + done * width * item, _address(weights) + done * VECTOR_BYTES
        if item == 2:
            lanes.widen(values, (num_keys * width + LANES - 1) // LANES, _address(block))
            values = _address(block)
        else:
            lanes.prefetch(values + BLOCK * size, BLOCK * size)
        column = 0
        while column + IN_FLIGHT <= width:
            target = _address(result) + column * VECTOR_BYTES
            lanes.add_columns(weight, values + 4 * column, size, num_keys, target)
            column += IN_FLIGHT
        for rest in range(column, width):
            lanes.add_column(weight, values + 4 * rest, size, num_keys, _address(result) + rest * VECTOR_BYTES)


@nb.njit(cache=True)
def _attend_tile(call: Table, table: LayerTable, step: StepTable, tile: Table, head: int, scratch: Floats) -> None:
    layer = table.integers
    segment = step.segments[tile[TILE_SEGMENT]]
    first_row, key_dim, value_dim = segment[FIRST_ROW], layer[KEY_DIM], layer[VALUE_DIM]
    start, end = _key_range(layer, step, tile)
    count = end - start

    after_query = key_dim * LANES
    after_result = after_query + value_dim * LANES
    after_block = after_result + (BLOCK + IN_FLIGHT) * max(key_dim, value_dim)
    query, result, block = scratch[:after_query], scratch[after_query:after_result], scratch[after_result:after_block]
    sums, scores = scratch[after_block : after_block + 3 * LANES], scratch[after_block + 3 * LANES :]

    slot = head * layer[NUM_SLOTS] + segment[START] + start
    _load_query(call, layer, tile, first_row, head, query)
    _score(table, layer[KEYS] + slot * key_dim * layer[ITEM_SIZE], count, query, scores, block)
    if table.numbers[SOFTCAP] > 0:
        lanes.soft_cap(_address(scores), count, table.numbers[SOFTCAP])
    _mask(layer, step, tile, start, end, scores)
    total = _weigh(table, tile, head, scores, count, sums)
    _add_values(layer, layer[VALUES] + slot * value_dim * layer[ITEM_SIZE], count, scores, result, block)
    _save(call, layer, tile, first_row, head, (result, total))


@nb.njit(cache=True)
def attend_serial(call: Table, table: LayerTable, step: StepTable, scratch: Floats) -> None:
    """scratch: float32 [threads, words], see `scratch_words`."""
    _store_rows(call, table.integers, step.segments)
    num_heads = table.integers[NUM_KV_HEADS]
    for task in range(len(step.tiles) * num_heads):
        _attend_tile(call, table, step, step.tiles[task // num_heads], task % num_heads, scratch[0])


@nb.njit(cache=True, parallel=True)
def attend_parallel(call: Table, table: LayerTable, step: StepTable, scratch: Floats) -> None:
    """As `attend_serial`, tiles and heads shared among numba's threads."""
    _store_rows(call, table.integers, step.segments)
    num_heads = table.integers[NUM_KV_HEADS]
    for task in nb.prange(len(step.tiles) * num_heads):
        room = scratch[nb.get_thread_id()]
        _attend_tile(call, table, step, step.tiles[task // num_heads], task % num_heads, room)
